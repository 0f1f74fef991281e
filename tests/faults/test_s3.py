"""A service that stops, throttles, breaks off, and does not believe in the credentials."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taquba import Queue
from taquba.errors import CorruptStore, StoreAccessDenied, StoreUnavailable
from taquba.objectstore import open_store
from tests.conftest import running_server

from .harness import LONG, Life, Nursery, Proxy, World, new_world
from .judge import open_and_read

Server = dict[str, Any]

DRIVERS = ["fsspec", "obstore"]


@pytest.fixture(params=DRIVERS)
def options(request: pytest.FixtureRequest, s3_server: Server) -> dict[str, Any]:
    """How to reach the server itself."""
    return {**s3_server["storage_options"], "driver": request.param}


@pytest.fixture
def proxy(s3_server: Server) -> Iterator[Proxy]:
    proxy = Proxy(s3_server["port"])
    yield proxy
    proxy.close()


@pytest.fixture
def world(
    nursery: Nursery,
    tmp_path: Path,
    s3_server: Server,
    options: dict[str, Any],
    request: pytest.FixtureRequest,
) -> Iterator[World]:
    """A world whose store is in a bucket; it is judged without the proxy."""
    name = re.sub(r"\W", "-", request.node.name)
    target = f"{s3_server['url']}/faults/{name}"
    with new_world(nursery, tmp_path, target=target, options=options) as made:
        yield made


def start_behind(proxy: Proxy, world: World, **plan: Any) -> Life:
    """A process that sees the service through the proxy."""
    return world.start(options=through(proxy, world), **plan)


def through(proxy: Proxy, world: World) -> dict[str, Any]:
    return {**world.options, "endpoint_url": proxy.endpoint}


def assert_goes_on(life: Life, *, jobs: int = 30) -> None:
    """What was held up is acknowledged, and more; nobody had to do anything."""
    life.expect("settled", after=life.now, count=jobs)
    assert life.stop() == 0, (life.events[-10:], life.errors())
    assert life.count("refused") == 0


# -- the server stops -------------------------------------------------------------------------


@pytest.mark.timeout(240)  # it takes its time to start, three times
def test_a_server_that_is_killed_and_that_is_stopped(nursery: Nursery, tmp_path: Path) -> None:
    """Twice under load, and started again on what it had stored."""
    data = ["--data", str(tmp_path / "data")]
    with running_server("seaweedfs", *data) as first:
        target = f"{first['url']}/app"
        with new_world(
            nursery, tmp_path / "world", target=target, options=first["storage_options"]
        ) as world:
            life = world.start()
            life.expect("settled", count=30)
            place = life.now
            os.kill(first["pid"], signal.SIGKILL)
            life.expect("cannot be stored", after=place)
            data += ["--port", str(first["port"])]
            with running_server("seaweedfs", *data) as second:
                place = life.expect("are stored again", after=place)
                life.expect("settled", after=place, count=30)
                os.kill(second["pid"], signal.SIGTERM)
                life.expect("cannot be stored", after=place)
                if not LONG:  # it takes its time; who waits for that may lose patience
                    os.kill(second["pid"], signal.SIGKILL)
            with running_server("seaweedfs", *data):
                place = life.expect("are stored again", after=place)
                assert_goes_on(life)
                world.judge()


# -- throttling, and credentials --------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"), [(503, "SlowDown"), (403, "ExpiredToken")], ids=["throttled", "expired"]
)
def test_a_service_that_refuses_everything_for_a_while(
    world: World, proxy: Proxy, status: int, code: str
) -> None:
    """Commits wait, and are acknowledged when the service takes them."""
    life = start_behind(proxy, world)
    life.expect("settled", count=30)
    place = life.now
    proxy.shut(status, code)
    life.expect("cannot be stored", after=place)
    if LONG:
        time.sleep(60)  # this is the fault itself
    else:
        proxy.wait_for(6)
    acknowledged = [event for event in life.events[place:] if event.startswith("settled")]
    proxy.reopen()
    life.expect("are stored again", after=place)
    assert len(acknowledged) < 60, "while it was shut, only what was under way can have ended"
    assert_goes_on(life)
    world.judge()


def test_opening_with_credentials_that_are_refused(world: World, proxy: Proxy) -> None:
    """That does not get better by waiting, so it is said at once, with the reason."""
    assert world.start(jobs=3).wait() == 0
    proxy.shut(403, "ExpiredToken")

    async def open_queue() -> None:
        with pytest.raises(StoreAccessDenied, match="ExpiredToken"):
            await Queue.open(world.target, storage_options=through(proxy, world))

    asyncio.run(open_queue())
    world.judge()


# -- answers that break off -------------------------------------------------------------------


def test_answers_that_break_off_under_load(world: World, proxy: Proxy) -> None:
    """Of every third write, the answer; of every fifth, the request itself."""
    proxy.lose("PUT", how="cut", times=float("inf"), every=3)
    proxy.lose("PUT", how="cut request", times=float("inf"), every=5)
    life = start_behind(proxy, world)
    life.expect("settled", count=100)
    life.kill()
    second = start_behind(proxy, world)
    second.expect("settled", count=30)
    assert second.stop() == 0
    fates = [seen.fate for seen in proxy.seen]
    assert fates.count("cut") > 10 and fates.count("cut request") > 5
    world.judge()


def test_every_object_breaks_off_when_it_is_first_read(world: World, proxy: Proxy) -> None:
    assert world.start(task="checkpoints").wait() == 0
    life = world.start()
    life.expect("settled", count=20)
    life.kill()
    proxy.lose("GET", how="cut", times=float("inf"), once_each=True)
    contents = asyncio.run(open_and_read(world.target, through(proxy, world)))
    cut = {seen.target.split("?")[0] for seen in proxy.seen if seen.fate == "cut"}
    for kind in ("journal", "checkpoints", "chunks"):
        assert any(f"/{kind}/" in target for target in cut), cut
    assert contents == world.judge()


@pytest.mark.parametrize("kind", ["journal", "checkpoints", "chunks"])
def test_an_answer_that_is_short_and_says_that_it_is_whole(
    world: World, proxy: Proxy, kind: str
) -> None:
    """Only the digests tell; the opening stops, names the object, and writes nothing."""
    assert world.start(task="checkpoints").wait() == 0
    life = world.start(jobs=1)
    life.expect("settled", count=2)
    life.kill()
    before = asyncio.run(_objects(world))
    proxy.lose("GET", f"/{kind}/", how="short", times=float("inf"))

    async def open_queue() -> None:
        with pytest.raises(CorruptStore, match=rf"{kind}/"):
            await Queue.open(world.target, storage_options=through(proxy, world))

    asyncio.run(open_queue())
    assert any(seen.fate == "short" for seen in proxy.seen)
    assert asyncio.run(_objects(world)) == before
    world.judge()


async def _objects(world: World) -> dict[str, bytes]:
    store = await open_store(world.target, read_only=True, **world.options)
    try:
        return {info.key: await store.get(info.key) async for info in store.list("")}
    finally:
        await store.close()


@pytest.mark.long  # takes a minute
def test_opening_while_everything_is_throttled(world: World, proxy: Proxy) -> None:
    """The repetitions are bounded, since somebody waits for the answer."""
    proxy.shut(503, "SlowDown")

    async def open_queue() -> None:
        with pytest.raises(StoreUnavailable, match="SlowDown"):
            await Queue.open(world.target, storage_options=through(proxy, world))

    asyncio.run(open_queue())
