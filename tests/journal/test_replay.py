from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from taquba.errors import CorruptStore, IncompatibleStore, StoreUnavailable
from taquba.journal import START, Entry, JournalGap, Kind, Position, replay
from taquba.journal._entry import encode_entry
from taquba.journal._position import entry_key
from taquba.objectstore import MemoryStore
from tests.journal.harness import CLOCK, ObedientStore, keys, open_log, run


async def written(count: int, *, store: MemoryStore | None = None, window: int = 4) -> MemoryStore:
    """A store with one owner and so many entries of one word."""
    store = MemoryStore() if store is None else store
    log = await open_log(store, window=window)
    for number in range(count):
        await log.say(str(number))
    await log.journal.close()
    return store


async def read(store: object, position: Position = START, **options: Any) -> list[Entry]:
    async with aclosing(replay(store, position, **options)) as entries:  # type: ignore[arg-type]
        return [entry async for entry, _ in entries]


async def end_of(store: MemoryStore) -> Position:
    position = START
    async with aclosing(replay(store, START)) as entries:
        async for _, after in entries:
            position = after
    return position


def forged(position: Position, body: bytes, *, skip: int = 0, durable_before: int = 0) -> bytes:
    """An entry of the writer at `position`, so many further on."""
    return encode_entry(
        kind=Kind.ORDINARY,
        epoch=position.epoch,
        seq=position.seq + skip,
        writer=b"w" * 16,
        previous=b"?" * 32 if skip else position.digest,
        committed_at_ms=0,
        window=position.window,
        durable_before=durable_before,
        body=body,
    )[0]


def test_entries_come_in_order_across_owners_and_skipped_windows() -> None:
    async def main() -> None:
        store = await written(3)
        await written(2, store=store)
        await store.create(entry_key(9), b"left behind where nobody looks")
        entries = await read(store)
        assert [entry.kind for entry in entries] == [2, 1, 1, 1, 2, 1, 1]
        assert [entry.seq for entry in entries] == [0, 4, 5, 6, 7, 11, 12]
        assert [entry.epoch for entry in entries] == [1, 1, 1, 1, 2, 2, 2]
        for options in ({"prefetch": 1}, {"prefetch": 3}, {"prefetch_bytes": 1}):
            assert await read(store, **options) == entries
        middle = Position(5, 1, entries[1].digest, 4, ())
        assert await read(store, middle) == entries[2:]

    run(main())


def test_an_empty_store_has_no_entries() -> None:
    assert run(read(MemoryStore())) == []


def test_a_thousand_entries_replay_fast_and_in_bounded_flight() -> None:
    async def main() -> None:
        slow = ObedientStore(await written(1000), latency=0.020)
        began = CLOCK.monotonic()
        assert len(await read(slow)) == 1001
        assert CLOCK.monotonic() - began < 0.5
        assert slow.most_active == 64
        slow.most_active = 0
        await read(slow, prefetch=5)
        assert slow.most_active == 5

    run(main())


def test_bytes_fetched_ahead_are_bounded() -> None:
    async def main() -> None:
        store = await written(20)
        slow = ObedientStore(store, latency=0.001)
        await read(slow, prefetch_bytes=3 * 143)
        assert slow.most_active == 3

    run(main())


def test_leaving_early_ends_every_request() -> None:
    async def main() -> None:
        slow = ObedientStore(await written(50), latency=1.0)
        async with aclosing(replay(slow, START)) as entries:
            async for _ in entries:
                break
        assert slow.active == 0
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_a_store_that_fails_ends_replay_with_its_error() -> None:
    async def main() -> None:
        flaky = ObedientStore(await written(50), latency=0.01)

        def fail(operation: str, key: str) -> None:
            if operation == "get" and key >= entry_key(20):
                raise StoreUnavailable("no", operation=operation, key=key)

        flaky.fail = fail
        with pytest.raises(StoreUnavailable):
            await read(flaky)
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_what_a_dead_writer_left_behind_its_first_missing_entry_is_no_damage() -> None:
    async def main() -> None:
        store = await written(3)
        tail = await end_of(store)
        for skip in (1, 3):  # window 4: n, n+1, n+2 and n+3 were in flight
            await store.create(
                entry_key(tail.seq + skip),
                forged(tail, b"never", skip=skip, durable_before=tail.seq),
            )
        assert len(await read(store)) == 4
        log = await open_log(store)
        assert log.machine.words == ["0", "1", "2"]
        assert log.journal.position.seq == tail.seq + 4
        await log.say("3")
        await log.journal.close()
        assert [entry.body for entry in await read(store) if entry.kind is Kind.ORDINARY] == [
            b"0", b"1", b"2", b"3"
        ]  # fmt: skip

    run(main())


def test_an_entry_a_window_behind_the_missing_one_is_a_gap() -> None:
    async def main() -> None:
        store = await written(3)
        tail = await end_of(store)
        await store.create(entry_key(tail.seq + 4), forged(tail, b"x", skip=4))
        with pytest.raises(JournalGap, match=f"{entry_key(tail.seq)}.*or more entries later") as e:
            await read(store)
        assert e.value.seq == tail.seq
        with pytest.raises(JournalGap):
            await open_log(store)
        assert len(await keys(store)) == 5  # opening wrote nothing

    run(main())


@pytest.mark.parametrize("missing", [4, 5, 6, 7, 8])
def test_every_missing_entry_that_was_acknowledged_is_a_gap(missing: int) -> None:
    async def main() -> None:
        store = await written(6)  # 4 to 9
        await store.delete([entry_key(missing)])
        with pytest.raises(JournalGap, match=entry_key(missing)):
            await read(store)

    run(main())


def test_a_missing_epoch_entry_is_a_gap() -> None:
    async def main() -> None:
        store = await written(2)
        await written(2, store=store)
        for missing in (0, 6):
            other = MemoryStore()
            for key in await keys(store):
                if key != entry_key(missing):
                    await other.create(key, await store.get(key))
            with pytest.raises(JournalGap, match=entry_key(missing)):
                await read(other)

    run(main())


def test_leftovers_that_cannot_be_leftovers_are_noticed() -> None:
    async def main() -> None:
        for change, reason in (
            (b"damaged", "damaged"),
            ("epoch", "of epoch 7"),
            ("seq", "number"),
        ):
            store = await written(3)
            tail = await end_of(store)
            if isinstance(change, bytes):
                data = change
            elif change == "epoch":
                other = Position(tail.seq, 7, tail.digest, 4, ())
                data = forged(other, b"x", skip=2)
            else:
                data = forged(tail, b"x", skip=3)
            await store.create(entry_key(tail.seq + 2), data)
            with pytest.raises(CorruptStore, match=reason):
                await read(store)

    run(main())


def test_an_entry_that_lands_while_the_tail_is_looked_at_is_read() -> None:
    async def main() -> None:
        memory = await written(3)
        tail = await end_of(memory)
        lagging = ObedientStore(memory)
        listings = 0
        late = {
            tail.seq: forged(tail, b"late"),
            tail.seq + 1: forged(tail, b"later", skip=1, durable_before=tail.seq + 1),
        }

        def land(operation: str, key: str) -> None:
            nonlocal listings
            listings += operation == "list"
            # The second listing shows only the later one, which proves the earlier one.
            if operation == "list" and listings == 2:
                memory._objects[entry_key(tail.seq + 1)] = late[tail.seq + 1]
                memory._sorted.append(entry_key(tail.seq + 1))
            if operation == "get" and key == entry_key(tail.seq) and listings == 2:
                memory._objects[key] = late[tail.seq]
                memory._sorted.insert(-1, key)

        lagging.fail = land
        with pytest.raises(CorruptStore, match="digest"):  # of the forged later one: it was read
            await read(lagging)

    run(main())


def test_damage_and_tampering_stop_replay() -> None:
    async def main() -> None:
        store = await written(3)
        original = await store.get(entry_key(5))
        await store.put(entry_key(5), original[:-1] + b"?")
        with pytest.raises(CorruptStore, match=f"{entry_key(5)}.*sha256"):
            await read(store)
        # A forger who recomputes the sums of one entry still breaks the chain.
        first = await end_of(await written(1))
        await store.put(entry_key(5), forged(first, b"forged"))
        with pytest.raises(CorruptStore, match="does not continue the log"):
            await read(store)
        await store.put(entry_key(5), original[:8] + b"\x00\x63" + original[10:])
        with pytest.raises(IncompatibleStore, match="99"):
            await read(store)

    run(main())


def test_polling_an_idle_log_costs_one_get() -> None:
    async def main() -> None:
        memory = await written(3)
        tail = await end_of(memory)
        store = ObedientStore(memory)
        async with aclosing(replay(store, tail, settle_tail=False)) as entries:
            assert [entry async for entry in entries] == []
        assert store.calls == [("get", entry_key(tail.seq))]
        await memory.create(entry_key(tail.seq), forged(tail, b"new"))
        async with aclosing(replay(store, tail, settle_tail=False)) as entries:
            assert [entry.body async for entry, _ in entries] == [b"new"]

    run(main())
