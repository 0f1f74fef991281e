"""Verifying a store whose jobs have payloads in objects of their own, and what `info` counts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taquba import ManualClock, Queue
from taquba.cli import main
from taquba.objectstore import MemoryStore
from taquba.queue import PAYLOAD_PREFIX, verify_queue
from taquba.testing import FaultyStore

from .harness import take

pytestmark = pytest.mark.anyio

LARGE = bytes(1000)
OBJECT = 1020


@pytest.fixture
async def store() -> MemoryStore:
    """Three jobs with payloads in objects, one of them in several, and one without."""
    store = MemoryStore()
    async with Queue.open(store, clock=ManualClock(), offload_payloads_above=64) as queue:
        for number in range(3):
            await queue.enqueue("q", LARGE, job_id=f"job-{number}")
        await queue.enqueue("q", b"small")
    return store


async def keys(store: MemoryStore) -> list[str]:
    return [info.key async for info in store.list(PAYLOAD_PREFIX)]


async def test_payloads_that_jobs_name_are_counted(store: MemoryStore) -> None:
    report = await verify_queue(store, clock=ManualClock(), read_payloads=True)
    assert report.clean
    assert (report.survey.others.count, report.survey.others.bytes) == (3, 3 * OBJECT)
    assert not report.survey.orphans


async def test_a_missing_payload_is_found(store: MemoryStore) -> None:
    [first, *_] = await keys(store)
    await store.delete([first])
    report = await verify_queue(store, clock=ManualClock())
    [finding] = report.findings
    assert finding.key == first and "is missing, and job 'job-" in finding.reason
    assert "cannot be delivered" in finding.meaning


async def test_a_truncated_payload_is_found_without_reading_it(store: MemoryStore) -> None:
    [first, *_] = await keys(store)
    await store.put(first, (await store.get(first))[:-1])
    report = await verify_queue(store, clock=ManualClock())
    [finding] = report.findings
    assert finding.key == first and "it has 1,019 bytes" in finding.reason


async def test_a_changed_payload_is_found_by_reading_it(store: MemoryStore) -> None:
    [first, *_] = await keys(store)
    await store.put(first, (await store.get(first))[:-1] + b"!")
    assert (await verify_queue(store, clock=ManualClock())).clean
    report = await verify_queue(store, clock=ManualClock(), read_payloads=True)
    [finding] = report.findings
    assert finding.key == first and "damaged" in finding.reason


async def test_objects_that_no_job_names_are_told(store: MemoryStore) -> None:
    await store.put(f"{PAYLOAD_PREFIX}0000000001-0000000000001-{'0' * 16}-00000", b"left")
    report = await verify_queue(store, clock=ManualClock())
    assert report.clean
    [unnamed] = report.survey.orphans
    assert (unnamed.kind, unnamed.count, unnamed.bytes) == ("unnamed payloads", 1, 4)
    assert report.survey.total.bytes == sum([info.size async for info in store.list("")])


async def test_a_job_that_ends_meanwhile_is_no_damage(store: MemoryStore) -> None:
    """Its payload is gone when the objects are listed, and it was there at the tail."""
    clock = ManualClock()
    async with Queue.open(store, clock=clock, offload_payloads_above=64) as queue:
        claim = await take(queue)

        class Interrupted(FaultyStore):
            done = False

            async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[object]:  # type: ignore[override]
                if prefix == PAYLOAD_PREFIX and not self.done:
                    self.done = True
                    await queue.ack(claim)
                    await clock.advance(0)
                    await clock.advance(0)
                async for info in super().list(prefix, start_after):
                    yield info

        interrupted = Interrupted(store)
        report = await verify_queue(interrupted, clock=clock)
        assert interrupted.done and report.clean
        assert report.survey.others.count == 2


async def test_a_damaged_reference_is_a_contradiction(store: MemoryStore) -> None:
    async with Queue.open(store, clock=ManualClock()) as queue:
        with queue.transaction() as tx:
            tx.execute("UPDATE jobs SET payload_ref = 'nonsense' WHERE id = 'job-1'")
        await tx.durable()
    report = await verify_queue(store, clock=ManualClock())
    [finding] = report.findings
    assert "'job-1'" in finding.reason and "'nonsense'" in finding.reason


async def test_the_command_line_knows_the_payloads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Queue.open(tmp_path / "app", offload_payloads_above=64) as queue:
        await queue.enqueue("q", LARGE)
    import asyncio

    url = str(tmp_path / "app")

    async def run(*arguments: str) -> dict[str, object]:
        status = await asyncio.to_thread(main, [*arguments, url, "--json"])
        shown = json.loads(capsys.readouterr().out)
        return {"status": status, **shown}

    info = await run("info")
    assert info["stored"]["others"] == {"count": 1, "bytes": OBJECT}  # type: ignore[index]
    assert (await run("verify"))["status"] == 0
    [path] = (tmp_path / "app" / "payloads").iterdir()
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data[:-1] + b"!")
    assert (await run("verify"))["status"] == 0
    assert (await run("verify", "--payloads"))["status"] == 1
    path.unlink()
    assert (await run("verify"))["status"] == 1
