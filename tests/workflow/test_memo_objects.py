"""Memo values that are objects of their own: how long, what they cost, and what can go wrong."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taquba import ManualClock, Queue, TransientError
from taquba.errors import (
    ClaimLost,
    CorruptStore,
    InvalidArgument,
    InvalidType,
    PayloadMissing,
    StoreUnavailable,
    ValueTooLarge,
)
from taquba.objectstore import MemoryStore
from taquba.queue import PAYLOAD_PREFIX, verify_queue
from taquba.workflow import (
    MAX_INLINE_MEMO_SIZE,
    MAX_MEMO_SIZE,
    BlockingStep,
    Continue,
    ErrorKind,
    MemoStats,
    Outcome,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
    _clearing,
    _memo,
)
from taquba.workflow._memo_rows import remove_some

from .harness import Bed, GateStore, Process, bed, settle

pytestmark = pytest.mark.anyio

LARGE = bytes(range(256)) * 8
LIMIT = 100
Body = Callable[[Step], Awaitable[Any]]


class CountingStore(GateStore):
    """Also counts what is read and written below `payloads/`."""

    def __init__(self, store: Any, **options: Any) -> None:
        super().__init__(store, **options)
        self.reads = 0
        self.stored: list[str] = []
        self.deleted: list[str] = []
        self.before_put: Callable[[str], Awaitable[None]] | None = None

    async def get(self, key: str) -> bytes:
        self.reads += 1
        return await super().get(key)

    async def put(self, key: str, data: bytes) -> None:
        if key.startswith(PAYLOAD_PREFIX):
            self.stored.append(key)
            if self.before_put is not None:
                await self.before_put(key)
        await super().put(key, data)

    async def delete(self, keys: Any) -> None:
        keys = list(keys)
        self.deleted += [key for key in keys if key.startswith(PAYLOAD_PREFIX)]
        await super().delete(keys)


@asynccontextmanager
async def counting_bed(runner: Any, **options: Any) -> AsyncIterator[tuple[Bed, CountingStore]]:
    clock, store = ManualClock(), CountingStore(MemoryStore())
    options.setdefault("memo_inline_limit", LIMIT)
    async with Queue.open(store, clock=clock) as queue:
        async with WorkflowRuntime(queue, runner, **options) as runtime:
            try:
                yield Bed(queue, runtime, clock, store), store
            finally:
                store.release()


async def in_step(body: Callable[[Step, CountingStore], Awaitable[Any]], **options: Any) -> Any:
    """What `body` returns or raises, run as a step."""
    answers: list[Any] = []

    async def runner(step: Step) -> Outcome:
        try:
            answers.append(await body(step, store))
        except Exception as error:
            answers.append(error)
        return Succeed()

    async with counting_bed(runner, **options) as (t, store):
        await t.runtime.submit(b"", run_id="r")
        await t.end("r")
        await t.settle()
        left = [info.key async for info in store.list(PAYLOAD_PREFIX)]
    assert len(answers) == 1, "one attempt"
    if isinstance(answers[0], Exception):
        raise answers[0]
    assert left == [], "objects go with the run"
    assert sorted(store.deleted) == sorted(store.stored)
    return answers[0]


async def test_a_large_value_is_an_object_until_it_is_replaced_or_the_run_ends() -> None:
    """MEM-01, MEM-02: as small ones; each value has an object of its own."""

    async def body(step: Step, store: CountingStore) -> None:
        memo = step.memo
        await memo.put("k", bytes(LIMIT))
        assert store.stored == []
        await memo.put("k", LARGE)
        assert len(store.stored) == 1
        assert await memo.get("k") == LARGE
        await memo.put("k", LARGE + b"!")
        assert await memo.get("k") == LARGE + b"!"
        await memo.put("k", b"")
        assert await memo.get("k") == b""
        await memo.put("k", LARGE)
        await step.run_memo.put("k", bytes(LIMIT + 1))
        assert await memo.get("k") == LARGE
        assert await step.run_memo.get("k") == bytes(LIMIT + 1)
        await settle(step._queue.clock)  # type: ignore[arg-type]
        assert store.deleted == store.stored[:2]
        assert len(store.stored) == 4

    await in_step(body)


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_small_value_needs_no_request_and_a_large_one_one(blocking: bool) -> None:
    counts: list[tuple[int, int]] = []

    def note() -> None:
        counts.append((store.reads, len(store.stored)))

    async def runner(step: Step) -> Outcome:
        note()
        for _ in range(3):
            assert await step.memo.memoized("small", lambda: 1) == 1
            assert await step.memo.get("small") is not None
        note()
        for _ in range(3):
            assert await step.memo.memoized("large", lambda: LARGE, bytes) == LARGE
        note()
        return Succeed()

    def blocking_runner(step: BlockingStep) -> Outcome:
        note()
        for _ in range(3):
            assert step.memo.memoized("small", lambda: 1) == 1
            assert step.memo.get("small") is not None
        note()
        for _ in range(3):
            assert step.memo.memoized("large", lambda: LARGE, bytes) == LARGE
        note()
        return Succeed()

    async with counting_bed(blocking_runner if blocking else runner) as (t, store):
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        end = await t.runtime.wait("r")
    assert end.termination.error is None
    start, small, large = counts
    assert small == start
    assert large == (start[0] + 2, start[1] + 1)


async def test_values_of_several_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 16 MiB a value is stored in parts, in their order."""
    monkeypatch.setattr("taquba.queue._payloads.PART_SIZE", 1000)
    monkeypatch.setattr("taquba.queue._payloads.MAX_PAYLOAD_SIZE", 2000)

    async def body(step: Step, store: CountingStore) -> None:
        for size, parts in ((2000, 1), (2001, 3), (30_000, 30), (30_001, 31)):
            before = len(store.stored)
            value = bytes(number % 251 for number in range(size))
            await step.memo.put("k", value)
            assert await step.memo.get("k") == value
            assert len(store.stored) - before == parts
        [lost, *_] = store.stored[-31:]
        await store.below.delete([lost])
        with pytest.raises(PayloadMissing, match="memo 'k'"):
            await step.memo.get("k")

    await in_step(body)


async def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the edge, and one beyond it."""

    async def body(step: Step, store: CountingStore) -> None:
        with pytest.raises(ValueTooLarge, match="1,073,741,825 bytes"):
            await step.memo.put("k", bytes(MAX_MEMO_SIZE + 1))  # never touched, so no memory
        monkeypatch.setattr(_memo, "MAX_MEMO_SIZE", 1000)
        await step.memo.put("k", bytes(1000))
        with pytest.raises(ValueTooLarge, match="1,001 bytes"):
            await step.memo.put("k", bytes(1001))
        with pytest.raises(ValueTooLarge, match="1,001 bytes"):
            await step.memo.memoized("m", lambda: bytes(1001 - 3))
        assert await step.memo.memoized("m", lambda: bytes(1000 - 3)) == bytes(997)

    await in_step(body)


@pytest.mark.parametrize("limit", [-1, MAX_INLINE_MEMO_SIZE + 1, 1.5, "1", True])
async def test_wrong_limits(limit: Any) -> None:
    async with Queue.open("memory://", clock=ManualClock()) as queue:
        with pytest.raises((InvalidArgument, InvalidType), match="memo_inline_limit"):
            WorkflowRuntime(queue, None, memo_inline_limit=limit)
        WorkflowRuntime(queue, None, memo_inline_limit=MAX_INLINE_MEMO_SIZE)


async def test_with_the_limit_0_all_but_empty_values_are_objects() -> None:
    async def body(step: Step, store: CountingStore) -> None:
        await step.memo.put("k", b"")
        assert store.stored == []
        await step.memo.put("k", b"1")
        assert len(store.stored) == 1
        assert await step.memo.get("k") == b"1"

    await in_step(body, memo_inline_limit=0)


async def test_another_limit_later_reads_what_is_there() -> None:
    """MEM-16: the limit may differ from one opening to the next."""
    store, clock = MemoryStore(), ManualClock()
    calls = 0

    async def runner(step: Step) -> Outcome:
        nonlocal calls

        def compute() -> bytes:
            nonlocal calls
            calls += 1
            return LARGE

        assert await step.memo.memoized("a", compute, bytes) == LARGE
        if step.attempt == 1:
            await asyncio.Event().wait()
        return Succeed()

    for limit in (LIMIT, None, 0):
        process = Process(store, runner, clock, memo_inline_limit=limit)
        assert await process.opened()
        if limit == LIMIT:
            await process.runtime.submit(b"", run_id="r")
            await settle(clock)
            await process.kill()
        else:
            await settle(clock)
            await process.leave()
    assert calls == 1


# -- lost and damaged ------------------------------------------------------------------------


async def lose(store: CountingStore, how: str) -> None:
    key = store.stored[-1]
    if how == "gone":
        await store.below.delete([key])
    elif how == "short":
        await store.below.put(key, (await store.below.get(key))[:-1])
    elif how == "another":
        await store.below.put(key, await store.below.get(store.stored[0]))
    else:
        await store.below.put(key, (await store.below.get(key))[:-1] + b"?")


@pytest.mark.parametrize("how", ["gone", "short", "another", "changed"])
async def test_a_lost_value(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """MEM-08: `get` raises, `memoized` computes again with a warning, `put` replaces it."""

    async def body(step: Step, store: CountingStore) -> None:
        memo = step.memo
        await memo.put("first", LARGE)
        expected = PayloadMissing if how == "gone" else CorruptStore
        await memo.memoized("k", lambda: LARGE + b"1", bytes)
        await lose(store, how)
        with pytest.raises(expected, match="memo 'k' is lost"):
            await memo.get("k")
        assert not caplog.records
        assert await memo.memoized("k", lambda: LARGE + b"2", bytes) == LARGE + b"2"
        [record] = caplog.records
        assert "'k' is computed again" in record.getMessage()
        assert await memo.memoized("k", lambda: b"", bytes) == LARGE + b"2"
        await lose(store, how)
        await memo.put("k", LARGE)
        assert await memo.get("k") == LARGE

    with caplog.at_level(logging.WARNING, "taquba.workflow"):
        await in_step(body)


@pytest.mark.parametrize("how", ["gone", "changed"])
async def test_a_lost_value_in_a_thread(how: str, caplog: pytest.LogCaptureFixture) -> None:
    def runner(step: BlockingStep) -> Outcome:
        memo = step.memo
        memo.put("first", LARGE)
        memo.put("k", LARGE)
        asyncio.run_coroutine_threadsafe(lose(store, how), loop).result()
        with pytest.raises(PayloadMissing if how == "gone" else CorruptStore, match="memo 'k'"):
            memo.get("k")
        assert memo.memoized("k", lambda: LARGE + b"2", bytes) == LARGE + b"2"
        assert memo.memoized("k", lambda: b"", bytes) == LARGE + b"2"
        memo.put("k", b"no json")
        assert memo.memoized("k", lambda: LARGE, bytes) == LARGE
        return Succeed()

    loop = asyncio.get_running_loop()
    async with counting_bed(runner) as (t, store):
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        assert (await t.runtime.wait("r")).termination.error is None
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 2 and all("'k' is computed again" in text for text in warned)


async def test_a_value_that_is_replaced_while_it_is_read() -> None:
    """The reader gets the new one, also if its object was gone before it could be read."""

    async def body(step: Step, store: CountingStore) -> None:
        clock: Any = step._queue.clock
        for new in (LARGE + b"2", b"small"):
            await step.memo.put("k", LARGE)
            fetch = step._queue.fetch_value
            replaced = False

            async def slow(ref: str, new: bytes = new, fetch: Any = fetch) -> bytes:
                nonlocal replaced
                if not replaced:
                    replaced = True
                    await step.memo.put("k", new)
                    await settle(clock)
                return await fetch(ref)  # type: ignore[no-any-return]

            step._queue.fetch_value = slow  # type: ignore[method-assign]
            assert await step.memo.get("k") == new
            step._queue.fetch_value = fetch  # type: ignore[method-assign]

    await in_step(body)


async def test_a_store_that_fails_while_an_object_is_written() -> None:
    """The attempt fails, for now; nothing is left of what was stored."""
    attempts = 0

    async def refuse(key: str) -> None:
        if attempts < 3:
            raise StoreUnavailable("down")

    async def runner(step: Step) -> Outcome:
        nonlocal attempts
        attempts = step.attempt
        await step.memo.put("k", LARGE)
        return Succeed(await step.memo.get("k"))

    async with counting_bed(runner) as (t, store):
        store.before_put = refuse
        await t.runtime.submit(b"", run_id="r")
        end = await t.end("r")
        assert end.outcome.result == LARGE
        assert attempts == 3

        attempts = 0
        await t.runtime.submit(b"", run_id="again", max_attempts=2)
        end = await t.end("again")
        assert (end.termination.status, end.termination.error) == (TerminalStatus.FAILED, "down")
        assert end.termination.error_kind is ErrorKind.TRANSIENT
        assert t.queue.peek("SELECT * FROM memos") == []
        await t.settle()
        assert [info async for info in store.list(PAYLOAD_PREFIX)] == []


async def test_a_store_that_fails_while_an_object_is_read() -> None:
    """That is an error of the attempt: it is not computed again, and the next one finds it."""
    computed = 0
    failing = True

    async def runner(step: Step) -> Outcome:
        nonlocal failing

        def compute() -> bytes:
            nonlocal computed
            computed += 1
            return LARGE

        if step.attempt > 1:
            failing = False
        await step.memo.memoized("k", compute, bytes)
        return Succeed(await step.memo.memoized("k", compute, bytes))

    class Failing(CountingStore):
        async def get(self, key: str) -> bytes:
            if failing and key.startswith(PAYLOAD_PREFIX):
                raise StoreUnavailable("down")
            return await super().get(key)

    clock = ManualClock()
    async with (
        Queue.open(Failing(MemoryStore()), clock=clock) as queue,
        WorkflowRuntime(queue, runner, memo_inline_limit=LIMIT) as runtime,
    ):
        await runtime.submit(b"", run_id="r")
        waiting = asyncio.ensure_future(runtime.wait("r"))
        await clock.advance(3600)
        assert (await waiting).outcome.result == LARGE
    assert computed == 1


# -- cancellation, lost leases, crashes ------------------------------------------------------


async def test_a_put_that_is_cancelled_anywhere_leaves_the_old_or_the_new_value() -> None:
    old_seen = new_seen = False
    for turns in range(60):
        for old in (b"small", LARGE):

            async def body(
                step: Step, store: CountingStore, turns: int = turns, old: bytes = old
            ) -> bytes | None:
                await step.memo.put("k", old)
                putting = asyncio.ensure_future(step.memo.put("k", LARGE + b"new"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                putting.cancel()
                await asyncio.gather(putting, return_exceptions=True)
                return await step.memo.get("k")

            got = await in_step(body)
            assert got in (old, LARGE + b"new")
            old_seen |= got == old
            new_seen |= got != old
    assert old_seen and new_seen


async def test_a_memoized_call_that_is_cancelled_while_its_value_is_stored() -> None:
    """The next one computes, or finds it."""

    async def body(step: Step, store: CountingStore) -> None:
        for turns in range(30):
            key = f"k{turns}"
            calls: list[int] = []

            def compute(calls: list[int] = calls) -> bytes:
                calls.append(1)
                return LARGE

            first = asyncio.ensure_future(step.memo.memoized(key, compute, bytes))
            second = asyncio.ensure_future(step.memo.memoized(key, compute, bytes))
            for _ in range(turns):
                await asyncio.sleep(0)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            assert await second == LARGE
            assert len(calls) in (1, 2)
            assert await step.memo.get(key) is not None
        assert step.memo._locks == {}

    await in_step(body)


async def test_a_lease_that_expires_while_an_object_is_written() -> None:
    """The late value is refused, and its object deleted."""
    told: list[BaseException] = []
    attempt = 0

    async def wait(key: str) -> None:
        if attempt == 1:
            await go.wait()

    async def store_it(step: Step) -> None:
        try:
            await step.memo.put("k", LARGE)
        except BaseException as error:
            told.append(error)

    async def runner(step: Step) -> Outcome:
        nonlocal attempt
        attempt = step.attempt
        if attempt == 1:
            late.append(asyncio.ensure_future(store_it(step)))
            await asyncio.Event().wait()
        return Succeed(await step.memo.get("k"))

    go = asyncio.Event()
    late: list[asyncio.Task[None]] = []
    async with counting_bed(runner, renew=None) as (t, store):
        store.before_put = wait
        await t.runtime.submit(b"", run_id="r")
        assert (await t.end("r")).outcome.result is None
        go.set()
        await asyncio.gather(*late)
        await t.settle()
        assert [type(error) for error in told] == [ClaimLost]
        assert [info async for info in store.list(PAYLOAD_PREFIX)] == []
        with pytest.raises(ClaimLost):
            await _put_after_the_end(t)


async def _put_after_the_end(t: Bed) -> None:
    kept: list[Step] = []

    async def runner(step: Step) -> Outcome:
        kept.append(step)
        return Succeed()

    async with WorkflowRuntime(t.queue, runner, queue_name="other") as other:
        await other.submit(b"", run_id="x")
        await other.wait("x")
        await kept[0].memo.put("k", LARGE * 100)


async def test_dying_after_every_number_of_objects() -> None:
    """MEM-16: what a call returned is found by the next process; nothing stays behind."""
    outcomes: set[int] = set()
    for die_after in range(1, 60):
        store, clock = MemoryStore(), ManualClock()
        remembered: set[str] = set()
        repeated: list[str] = []

        async def runner(
            step: Step, remembered: set[str] = remembered, repeated: list[str] = repeated
        ) -> Outcome:
            for name in ("a", "b"):
                key = f"{step.number}{name}"

                def compute(key: str = key) -> bytes:
                    if key in remembered:
                        repeated.append(key)
                    return LARGE + key.encode()

                assert await step.memo.memoized(name, compute, bytes) == LARGE + key.encode()
                remembered.add(key)
                await step.memo.put("again", LARGE + name.encode())
            if step.attempt == 1 and step.number == 0:
                raise TransientError("busy")
            return Continue() if step.number < 2 else Succeed(b"done")

        processes = 0
        for limit in (die_after, None):
            processes += 1
            process = Process(store, runner, clock, die_after=limit, memo_inline_limit=LIMIT)
            dead = asyncio.ensure_future(process.store.dead.wait())
            driving = asyncio.ensure_future(_drive(process))
            for _ in range(100):
                await settle(clock)
                if driving.done() or dead.done():
                    break
                await clock.advance(1)
            if driving.done() and not dead.done():
                assert await driving == b"done"
                await settle(clock)
                await process.leave()
                dead.cancel()
                break
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
            await process.kill()
        else:
            raise AssertionError("the last process died")
        assert repeated == []
        outcomes.add(processes)
        report = await verify_queue(store, clock=clock, read_payloads=True)
        assert report.clean
        assert report.survey.others.count == 0
        # What the first process had stored and not committed is collected a day later.
        async with Queue.open(store, clock=clock) as queue:
            assert queue.peek("SELECT * FROM memos") == []
            await collected(queue, clock)
        assert [info async for info in store.list(PAYLOAD_PREFIX)] == []
        if processes == 1:
            break
    assert outcomes == {1, 2}


async def collected(queue: Queue, clock: ManualClock, days: int = 4) -> None:
    """Checkpoints and collections over some days."""
    database = queue._core.database
    for number in range(2 * days):
        await queue.kv.put("k", b"%d" % number)
        await database.checkpoint()
        await database.collect()
        await clock.advance(86400 / 2)


async def _drive(process: Process) -> bytes | None:
    if not await process.opened():
        return None
    if await process.runtime.status("r") is None:
        await process.runtime.submit(b"", run_id="r", max_attempts=9)
    return (await process.runtime.wait("r")).outcome.result


# -- statistics ------------------------------------------------------------------------------


async def test_stats() -> None:
    """Of this delivery, by memo; a value that cannot be used is a miss."""

    async def body(step: Step, store: CountingStore) -> None:
        memo = step.memo
        assert memo.stats() == MemoStats(0, 0, 0, 0)
        assert await memo.get("k") is None
        assert memo.stats() == MemoStats(0, 1, 0, 0)
        await memo.put("k", b"abc")
        assert memo.stats() == MemoStats(0, 1, 0, 3)
        await memo.get("k")
        assert memo.stats() == MemoStats(1, 1, 3, 3)
        await memo.memoized("m", lambda: LARGE, bytes)
        size = memo.stats().bytes_written - 3
        assert size > len(LARGE) and memo.stats() == MemoStats(1, 2, 3, 3 + size)
        await memo.memoized("m", lambda: b"", bytes)
        assert memo.stats() == MemoStats(2, 2, 3 + size, 3 + size)
        await memo.put("m", b"xx")
        await memo.memoized("m", lambda: 5, int)
        assert (memo.stats().hits, memo.stats().misses) == (2, 3)
        await memo.put("large", LARGE)
        await lose(store, "gone")
        assert await memo.memoized("large", lambda: 5, int) == 5
        assert (memo.stats().hits, memo.stats().misses) == (2, 4)
        assert step.run_memo.stats() == MemoStats(0, 0, 0, 0)
        await asyncio.gather(*(step.run_memo.memoized("k", lambda: 1) for _ in range(10)))
        assert (step.run_memo.stats().hits, step.run_memo.stats().misses) == (9, 1)

    await in_step(body)


async def test_stats_in_a_thread() -> None:
    seen: list[MemoStats] = []

    def runner(step: BlockingStep) -> Outcome:
        memo = step.memo
        memo.put("k", b"no json")
        memo.memoized("k", lambda: 5, int)
        memo.memoized("k", lambda: 6, int)
        memo.get("nothing")
        seen.append(memo.stats())
        return Succeed()

    async with counting_bed(runner) as (t, _):
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        assert (await t.runtime.wait("r")).termination.error is None
    assert seen == [MemoStats(1, 2, 8, 8)]
    assert threading.active_count() >= 1


# -- the end of a run ------------------------------------------------------------------------


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many values are left after each slice."""
    left: list[int] = []

    def remove_and_count(tx: Any, life: int) -> bool:
        more = remove_some(tx, life)
        [(count,)] = tx.execute("SELECT count(*) FROM memos").fetchall()
        left.append(count)
        return more

    monkeypatch.setattr(_clearing, "remove_some", remove_and_count)
    return left


@pytest.mark.parametrize("size", [10, LIMIT + 1])
async def test_many_values_go_in_slices(size: int, slices: list[int]) -> None:
    """MEM-14, MEM-15: the run ends at once; what it had stored goes beside the work."""
    count = 1800

    async def runner(step: Step) -> Outcome:
        if step.run_id == "few":
            await step.memo.put("k", bytes(size))
            return Continue(after=1000) if step.number == 0 else Succeed()
        await asyncio.gather(*(step.memo.put(f"k{n}", bytes(size)) for n in range(count)))
        return Succeed(b"done")

    async with counting_bed(runner) as (t, store):
        await t.runtime.submit(b"", run_id="few")
        await t.settle()
        await t.runtime.submit(b"", run_id="many")
        end = await t.runtime.wait("many")
        assert end.outcome.result == b"done"
        await t.settle()
        assert slices == [1551, 1301, 1051, 801, 551, 301, 51, 1]
        assert t.queue.peek("SELECT count(*) FROM ended_lives") == [(0,)]
        await t.settle()
        left = [info async for info in store.list(PAYLOAD_PREFIX)]
        assert len(left) == (size > LIMIT)
        await t.end("few")
        await t.settle()
        assert slices == [1551, 1301, 1051, 801, 551, 301, 51, 1, 0]
        assert [info async for info in store.list(PAYLOAD_PREFIX)] == []


async def test_large_values_go_in_slices_by_their_size(slices: list[int]) -> None:
    async def runner(step: Step) -> Outcome:
        for number in range(5):
            await step.memo.put(f"k{number}", bytes(3 * 1024 * 1024))
        return Succeed()

    async with counting_bed(runner, memo_inline_limit=None) as (t, _):
        await t.runtime.submit(b"", run_id="r")
        await t.runtime.wait("r")
        await t.settle()
        assert slices == [4, 3, 2, 1, 0]


async def test_clearing_goes_on_after_a_crash() -> None:
    """And a new life of the id, begun meanwhile, keeps its own."""
    store, clock = MemoryStore(), ManualClock()

    async def runner(step: Step) -> Outcome:
        if step.payload == b"again":
            await step.memo.put("k", b"mine")
            await asyncio.Event().wait()
        await asyncio.gather(*(step.memo.put(f"k{n}", b"v") for n in range(1200)))
        return Succeed()

    process = Process(store, runner, clock)
    assert await process.opened()
    background = process.queue._background_task
    background.cancel()  # so that nothing is cleared here
    await asyncio.gather(background, return_exceptions=True)
    await process.runtime.submit(b"", run_id="r")
    await process.runtime.wait("r")
    await process.runtime.submit(b"again", run_id="r")
    await settle(clock)
    assert process.queue.peek("SELECT count(*) FROM memos") == [(951,)]
    await process.kill()
    async with bed(None, store=store, clock=clock) as t:
        await t.settle()
        assert t.queue.peek("SELECT key, value FROM memos") == [("k", b"mine")]
        assert t.queue.peek("SELECT * FROM ended_lives") == []


# -- around it -------------------------------------------------------------------------------


async def test_an_owner_without_workflows_keeps_the_objects() -> None:
    """It does not know the tables, but what they name; verification does, too."""
    store, clock = MemoryStore(), ManualClock()

    async def runner(step: Step) -> Outcome:
        await step.memo.put("k", LARGE)
        await asyncio.Event().wait()
        return Succeed()

    process = Process(store, runner, clock, memo_inline_limit=LIMIT)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r")
    await settle(clock)
    await process.kill()
    async with Queue.open(store, clock=clock) as queue:
        await collected(queue, clock)
    [kept] = [info async for info in store.list(PAYLOAD_PREFIX)]
    report = await verify_queue(store, clock=clock, read_payloads=True)
    assert report.clean and report.survey.others.count == 1
    await store.put(kept.key, (await store.get(kept.key))[:-1] + b"?")
    [finding] = (await verify_queue(store, clock=clock, read_payloads=True)).findings
    assert finding.key == kept.key and "computed again" in finding.meaning
    await store.delete([kept.key])
    [finding] = (await verify_queue(store, clock=clock)).findings
    assert finding.key == kept.key and "'memos' needs it" in finding.reason


async def test_history_keeps_the_objects() -> None:
    """A state of the past names them."""
    store, clock = MemoryStore(), ManualClock()

    async def runner(step: Step) -> Outcome:
        await step.memo.put("k", LARGE)
        return Succeed()

    async with (
        Queue.open(store, clock=clock, retain_history=3600) as queue,
        WorkflowRuntime(queue, runner, memo_inline_limit=LIMIT) as runtime,
    ):
        await runtime.submit(b"", run_id="r")
        await runtime.wait("r")
        await settle(clock)
        assert len([info async for info in store.list(PAYLOAD_PREFIX)]) == 1
