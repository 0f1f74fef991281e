"""The judge must be able to condemn, or its acquittals mean nothing."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest

from taquba.queue import JobState

from .harness import Nursery, new_world
from .judge import Contents, Fact, broken_promises, parse_log

Sabotage = Callable[[list[Fact], Contents], object]


@pytest.fixture(scope="module")
def evidence(
    nursery: Nursery, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Fact], Contents]:
    """A log and a store that agree, after a kill."""
    with new_world(nursery, tmp_path_factory.mktemp("judge")) as world:
        first = world.start()
        first.expect("settled", count=60)
        first.kill()
        assert world.start(jobs=10).wait() == 0
        return parse_log(world.log.read_text()), world.judge()


def _fact(facts: list[Fact], what: str, how: str = "") -> Fact:
    return next(x for x in facts if x.what == what and how in ("", x.how))


def _with(contents: Contents, job: str, **changes: object) -> None:
    contents.jobs[job] = contents.jobs[job]._replace(**changes)


def _stored(contents: Contents, state: JobState, queue: str = "work") -> str:
    return next(k for k, v in contents.jobs.items() if (v.state, v.queue) == (state, queue))


SABOTAGES: dict[str, tuple[Sabotage, str]] = {
    "a job is lost": (
        lambda f, c: c.jobs.pop(_fact(f, "enqueued").of),
        "was enqueued, and is lost",
    ),
    "a job is made up": (
        lambda f, c: c.jobs.update(x=c.jobs[_fact(f, "enqueued").of]),
        "x comes from nowhere",
    ),
    "a payload is changed": (
        lambda f, c: _with(c, _fact(f, "enqueued").of, payload=b"x"),
        "has another payload",
    ),
    "a job is enqueued twice": (lambda f, c: f.append(_fact(f, "enqueued")), "enqueued 2 times"),
    "an attempt is given out twice": (
        lambda f, c: f.append(_fact(f, "claimed")._replace(life="Z")),
        "was given out 2 times",
    ),
    "an attempt is forgotten": (
        lambda f, c: _with(c, _fact(f, "claimed").of, attempts=0),
        "is forgotten",
    ),
    "a settlement is lost": (
        lambda f, c: _with(c, _fact(f, "settled", "done").of, state=JobState.PENDING),
        "was settled as done, and is PENDING",
    ),
    "a death is lost": (
        lambda f, c: _with(c, _fact(f, "settled", "dead").of, state=JobState.PENDING),
        "was settled as dead, and is PENDING",
    ),
    "a job is settled twice": (
        lambda f, c: f.append(_fact(f, "settled", "done")._replace(number=9)),
        "was settled 2 times",
    ),
    "a job is given out after its end": (
        lambda f, c: f.append(_fact(f, "settled", "done")._replace(what="claimed", number=9)),
        "was given out again, after it was settled",
    ),
    "a settlement lost its effects": (
        lambda f, c: c.kv.pop(f"done/{_stored(c, JobState.DONE)}"),
        "is done, without its key",
    ),
    "a settlement lost its follow-up": (
        lambda f, c: c.jobs.pop(f"{_stored(c, JobState.DONE)}-next"),
        "its follow-up is not there",
    ),
    "effects without their settlement": (
        lambda f, c: c.kv.update({f"done/{_stored(c, JobState.DEAD)}": b"1"}),
        "is DEAD, and has effects",
    ),
    "a job is done by nobody": (
        lambda f, c: c.kv.update({f"done/{_stored(c, JobState.DONE)}": b"77"}),
        "is done by nobody",
    ),
    "a job is dead by nobody's doing": (
        lambda f, c: _with(c, _stored(c, JobState.DEAD), attempts=77),
        "is dead by nobody's doing",
    ),
    "a key is lost": (lambda f, c: c.kv.pop("count/A0-0"), "when acknowledged, and is None"),
    "a key fell back": (
        lambda f, c: (
            f.append(Fact("A0", "put", "A0-0", 900)),
            f.append(Fact("A0", "putting", "A0-0", 900)),
        ),
        "was 900 when acknowledged",
    ),
    "a key is made up": (lambda f, c: c.kv.update({"count/x": b"1"}), "'count/x' comes from"),
    "a counter is wrong": (
        lambda f, c: c.counters["work"].__setitem__(3, c.counters["work"][3] + 1),
        "and counts",
    ),
}


@pytest.mark.parametrize("name", SABOTAGES)
def test_what_must_not_be_is_condemned(name: str, evidence: tuple[list[Fact], Contents]) -> None:
    sabotage, verdict = SABOTAGES[name]
    facts, contents = deepcopy(evidence)
    assert broken_promises(facts, contents) == []
    sabotage(facts, contents)
    assert any(verdict in broken for broken in broken_promises(facts, contents)), name
