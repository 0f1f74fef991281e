"""Sessions are killed with SIGKILL again and again; nothing is lost, nothing is done twice."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.process.harness import (
    Ended,
    Pipeline,
    Session,
    assert_all_is_well,
    copy_texts,
    storage_arguments,
)

SLOTS = 3
OPTIONS = ("--concurrency", str(SLOTS), "--delay", "0.01")


def killed_somewhere(session: Session, random: Random) -> Ended:
    """Kill a session at a moment that the seed chooses; it may have ended before.

    Most are killed a while after some line of output, since that is spread evenly over the
    work; some at any time after their start, since opening the store must bear it, too.
    """
    if random.random() < 0.15:
        moment = random.uniform(0.0, 1.0)
    else:
        for _ in range(random.randrange(4, 16)):
            if not session.read_line():
                break
        moment = random.uniform(0.0, 0.03)
    return session.wait() if session.ends_within(moment) else session.kill()


@pytest.mark.timeout(300)
def test_thirty_kills_at_random_moments(tmp_path: Path) -> None:
    random = Random(29)
    kills, lives = 0, 0
    while kills < 30:
        (home := tmp_path / str(lives)).mkdir()
        pipeline = Pipeline(home, *OPTIONS)
        copy_texts(pipeline.texts, documents=12, sections=4)
        kills_of_this_life = 0
        while kills + kills_of_this_life < 30 and not pipeline.is_done():
            with pipeline.session() as session:
                ended = killed_somewhere(session, random)
            assert ended.code in (0, -9), ended
            kills_of_this_life += ended.code == -9
        last = pipeline.run()
        assert_all_is_well(pipeline, last, slots=SLOTS, kills=kills_of_this_life)
        kills += kills_of_this_life
        lives += 1
    assert kills > 4 * lives, "hardly anything was interrupted: kill earlier"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("server", "kills"), [("s3_server", 5), ("gcs_server", 4), ("azure_server", 4)]
)
def test_kills_on_a_real_server(
    tmp_path: Path, request: pytest.FixtureRequest, server: str, kills: int
) -> None:
    random = Random(31)
    info: dict[str, Any] = request.getfixturevalue(server)
    store = f"--store={info['url']}/killed-pipeline"
    storage = storage_arguments(info["storage_options"])
    pipeline = Pipeline(tmp_path, *OPTIONS, store, *storage)
    copy_texts(pipeline.texts, documents=8, sections=4)
    for _ in range(kills):
        with pipeline.session() as session:
            last = killed_somewhere(session, random)
        assert last.code == -9, last
    assert_all_is_well(pipeline, pipeline.run(), slots=SLOTS, kills=kills)
    again = pipeline.run()
    assert_all_is_well(pipeline, again, slots=SLOTS, kills=kills)
    assert "resuming: 8 done before, 0 interrupted, 0 waiting, 0 new" in again.out
