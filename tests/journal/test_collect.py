"""Collection of entries and manifests: what is kept, at which pace, and whatever interrupts it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random

import pytest

from taquba.errors import CorruptStore, ObjectNotFound, StoreUnavailable
from taquba.journal import Checkpoint, checkpoint_as_of, checkpoints, collect, publish_checkpoint
from taquba.journal._checkpoint import checkpoint_key, encode_checkpoint
from taquba.journal._position import entry_key
from taquba.objectstore import MemoryStore
from tests.journal.harness import ObedientStore, keys, open_log, read_words, run


def timed(checkpoint: Checkpoint, committed_at_ms: int) -> Checkpoint:
    return Checkpoint(
        position=checkpoint.position,
        created_at_ms=checkpoint.created_at_ms,
        writer=checkpoint.writer,
        content=checkpoint.content,
        committed_at_ms=committed_at_ms,
    )


async def history(store: MemoryStore, *, owners: int = 2, words: int = 5) -> list[Checkpoint]:
    """Published checkpoints, one after each word, whose times are 0, 10, 20, …"""
    published: list[Checkpoint] = []
    for owner in range(owners):
        log = await open_log(store, window=4)
        for number in range(words):
            await log.say(f"{owner}.{number}")
            checkpoint = timed(log.checkpoint(), 10 * len(published))
            await publish_checkpoint(store, checkpoint)
            published.append(checkpoint)
        await log.journal.close()
    return published


def words(owners: int = 2, count: int = 5) -> list[str]:
    return [f"{owner}.{number}" for owner in range(owners) for number in range(count)]


async def seqs(store: MemoryStore) -> list[int]:
    return [checkpoint.position.seq async for checkpoint in checkpoints(store)]


def test_history_is_kept_from_the_newest_checkpoint_that_is_old_enough() -> None:
    async def main() -> None:
        for since, oldest in ((0, 0), (9, 0), (10, 1), (59, 5), (60, 6), (85, 8), (1000, 8)):
            store = MemoryStore()
            published = await history(store)
            done = await collect(store, published[-1], keep=2, since_ms=since)
            kept = [checkpoint.position.seq for checkpoint in published[oldest:]]
            assert await seqs(store) == kept == list(done.kept)
            assert done.cut == kept[0]
            stays = {mark.seq for mark in published[oldest].position.epochs}
            for key in await keys(store, "journal/"):
                assert int(key.removeprefix("journal/")) in stays or key >= entry_key(done.cut)
            assert await read_words(store) == words()

    run(main())


def test_without_a_checkpoint_that_is_old_enough_nothing_goes() -> None:
    """The states before the first checkpoint are rebuilt from the beginning of the log."""

    async def main() -> None:
        store = MemoryStore()
        published = await history(store)
        before = await keys(store)
        done = await collect(store, published[-1], keep=1, since_ms=-1)
        assert await keys(store) == before
        assert done.kept == tuple(checkpoint.position.seq for checkpoint in published)

    run(main())


def test_checkpoints_that_were_seen_are_not_read_again() -> None:
    async def main() -> None:
        memory = MemoryStore()
        published = await history(memory)
        store = ObedientStore(memory)
        times: dict[int, int] = {}
        noted: list[int] = []

        def note(checkpoint: Checkpoint) -> None:
            noted.append(checkpoint.position.seq)

        for reads in (5, 0):
            store.calls.clear()
            await collect(store, published[-1], since_ms=40, note=note, times=times)
            assert [operation for operation, _ in store.calls].count("get") == reads
        kept = [checkpoint.position.seq for checkpoint in published[4:]]
        assert sorted(noted) == sorted(times) == kept

    run(main())


def test_a_damaged_checkpoint_that_is_kept_stops_it_before_anything_is_deleted() -> None:
    async def main() -> None:
        store = MemoryStore()
        published = await history(store)
        key = checkpoint_key(published[6].position.seq)
        await store.put(key, (await store.get(key))[:-10])
        before = await keys(store)
        with pytest.raises(CorruptStore, match=key):
            await collect(store, published[-1], since_ms=40)
        assert await keys(store) == before
        await collect(store, published[-1], since_ms=75)  # it is not needed any more
        assert key not in await keys(store)

    run(main())


def test_the_pace_is_asked_before_each_request_and_for_each_object() -> None:
    async def main() -> None:
        memory = MemoryStore()
        published = await history(memory)
        store = ObedientStore(memory)
        asked: list[tuple[int, int]] = []

        async def pace(count: int) -> None:
            asked.append((len(store.calls), count))

        done = await collect(store, published[-1], batch=3, pace=pace)
        deleted = sum(len(key.split()) for operation, key in store.calls if operation == "delete")
        assert deleted == done.entries + done.checkpoints
        reads = sum(operation != "delete" for operation, _ in store.calls)
        assert sum(count for _, count in asked) == deleted + reads
        assert [number for number, _ in asked] == list(range(len(store.calls)))

    run(main())


def test_stopped_at_any_await_and_begun_again_it_ends_the_same() -> None:
    async def main() -> None:
        pattern = MemoryStore()
        published = await history(pattern)
        counting = ObedientStore(pattern)
        await collect(counting, published[-1], keep=2, since_ms=40, batch=2)
        expected = await keys(pattern)
        steps = len(counting.calls)
        assert steps > 8
        for step in range(steps):
            for landed in (False, True):
                memory = MemoryStore()
                published = await history(memory)
                store = ObedientStore(memory)

                def fail(operation: str, key: str, store: ObedientStore = store) -> None:
                    if len(store.calls) == step + 1:  # noqa: B023
                        raise asyncio.CancelledError

                store.fail = fail
                with pytest.raises(asyncio.CancelledError):
                    await collect(store, published[-1], keep=2, since_ms=40, batch=2)
                operation, key = store.calls[-1]
                if landed and operation == "delete":
                    await memory.delete(key.split())
                # Whoever reads now finds everything, from whichever checkpoint is the newest.
                assert await read_words(await _copy(memory)) == words()
                for checkpoint in [checkpoint async for checkpoint in checkpoints(memory)]:
                    assert await _is_whole(memory, checkpoint)
                await collect(memory, published[-1], keep=2, since_ms=40, batch=2)
                assert await keys(memory) == expected

    run(main())


async def _copy(store: MemoryStore) -> MemoryStore:
    copied = MemoryStore()
    for key in await keys(store):
        await copied.create(key, await store.get(key))
    return copied


async def _is_whole(store: MemoryStore, checkpoint: Checkpoint) -> bool:
    """Whether the log can be read on from there to its end."""
    copied = await _copy(store)
    for key in await keys(copied, "checkpoints/"):
        if key != checkpoint_key(checkpoint.position.seq):
            await copied.delete([key])
    return await read_words(copied) == words()


def test_rivals_that_collect_at_the_same_time_take_nothing_that_is_needed() -> None:
    """Each by its own newest checkpoint and its own rules, with requests in any order."""

    async def main() -> None:
        for seed in range(60):
            random = Random(seed)
            memory = MemoryStore()
            published = await history(memory, owners=3)

            class Slow(ObedientStore):
                async def _pass(self, operation: str, key: str) -> None:
                    await asyncio.sleep(random.random())  # noqa: B023
                    await super()._pass(operation, key)

            rivals = [
                collect(
                    Slow(memory),
                    random.choice(published),
                    keep=random.choice((1, 2, 3)),
                    since_ms=random.choice((None, random.randrange(140))),
                    batch=random.choice((1, 3, 100)),
                )
                for _ in range(4)
            ]
            await asyncio.gather(*rivals)
            assert published[-1].position.seq in await seqs(memory)
            for checkpoint in [checkpoint async for checkpoint in checkpoints(memory)]:
                copied = await _copy(memory)
                others = await keys(copied, "checkpoints/")
                others.remove(checkpoint_key(checkpoint.position.seq))
                await copied.delete(others)
                assert await read_words(copied) == words(3), f"seed {seed}"

    run(main())


def test_what_somebody_else_collects_meanwhile_is_no_error() -> None:
    async def main() -> None:
        memory = MemoryStore()
        published = await history(memory)
        store = ObedientStore(memory)

        def vanish(operation: str, key: str) -> None:
            if operation == "get":
                raise ObjectNotFound("gone", key=key)

        store.fail = vanish
        before = await keys(memory)
        done = await collect(store, published[-1], keep=2)
        assert done.kept == (published[-1].position.seq,)
        assert await keys(memory) == before  # with fewer than two it is not known what may go
        assert await read_words(memory) == words()

    run(main())


def test_a_store_that_refuses_stops_it_and_the_manifests_go_first() -> None:
    async def main() -> None:
        memory = MemoryStore()
        published = await history(memory)
        store = ObedientStore(memory)

        def refuse(operation: str, key: str) -> None:
            if operation == "delete" and key.startswith("journal/"):
                raise StoreUnavailable("no", operation=operation, key=key)

        store.fail = refuse
        entries = await keys(memory, "journal/")
        with pytest.raises(StoreUnavailable):
            await collect(store, published[-1])
        assert await keys(memory, "journal/") == entries
        assert len(await seqs(memory)) == 2

    run(main())


def test_the_checkpoint_of_a_moment_is_found_with_few_requests() -> None:
    async def main() -> None:
        memory = MemoryStore()
        log = await open_log(memory, window=4)
        published: list[Checkpoint] = []
        for number in range(200):
            await log.say(str(number))
            published.append(timed(log.checkpoint(), 10 * (number // 2)))
            await memory.create(
                checkpoint_key(published[-1].position.seq), encode_checkpoint(published[-1])
            )
        await log.journal.close()
        assert all(one.as_of_ms <= other.as_of_ms for one, other in pairwise(published))
        store = ObedientStore(memory)
        assert await checkpoint_as_of(store, -1) is None
        for at in (0, 5, 10, 333, 990, 5000):
            store.calls.clear()
            found = await checkpoint_as_of(store, at)
            expected = [point for point in published if point.as_of_ms <= at][-1]
            assert found is not None
            assert found.position == expected.position
            assert len(store.calls) <= 1 + 8
        middle = published[100].position.seq
        found = await checkpoint_as_of(memory, 5000, before=middle)
        assert found is not None
        assert found.position == published[99].position

    run(main())


def test_a_search_amid_collection_finds_what_is_left() -> None:
    async def main() -> None:
        memory = MemoryStore()
        published = await history(memory)
        store = ObedientStore(memory)
        gone = {checkpoint_key(checkpoint.position.seq) for checkpoint in published[:7]}

        def vanish(operation: str, key: str) -> None:
            if operation == "get" and key in gone:
                raise ObjectNotFound("gone", key=key)

        store.fail = vanish
        assert await checkpoint_as_of(store, 45) is None
        found = await checkpoint_as_of(store, 75)
        assert found is not None
        assert found.position == published[7].position

    run(main())
