"""No byte of a store can change without being noticed, unless it says nothing."""

from __future__ import annotations

import asyncio
import functools
import zlib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taquba.database import VerifyReport, verify
from taquba.journal import Kind, entry_key, read_entry, seq_of_key
from taquba.journal._checkpoint import decode_checkpoint
from taquba.journal._entry import encode_entry
from taquba.objectstore import MemoryStore

from .harness import opened, put


def copied(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    copy._objects = dict(store._objects)
    copy._sorted = list(store._sorted)
    return copy


async def _leave(store: MemoryStore, seq: int, epoch: int, durable_before: int) -> None:
    """An entry that a writer left where it never counted."""
    data, _ = encode_entry(
        kind=Kind.ORDINARY,
        epoch=epoch,
        seq=seq,
        writer=b"w" * 16,
        previous=b"p" * 32,
        committed_at_ms=1,
        window=16,
        durable_before=durable_before,
        body=b"never seen",
    )
    await store.create(entry_key(seq), data)


@functools.cache
def varied() -> MemoryStore:
    """Objects of every kind: two epochs, two checkpoints, a tail, and what writers left behind."""

    async def make() -> MemoryStore:
        store = MemoryStore()
        async with opened(store) as database:
            for number in range(5):
                await put(database, number, b"first")
            await database.checkpoint()
        async with opened(store) as database:
            for number in range(5, 15):
                await put(database, number, bytes(range(number * 10)))
            await database.checkpoint()
            await put(database, 1, b"changed")
            await database.checkpoint()
            for number in range(3):
                await put(database, number, b"tail")
        async with opened(store) as database:
            await put(database, 100, b"last")
            tail, mark = database.position.seq, database.position.epochs[-1].seq
        await _leave(store, mark + 3, 2, mark)
        await _leave(store, tail + 2, 3, tail)
        return store

    return asyncio.run(make())


def test_all_of_it_is_clean() -> None:
    report = asyncio.run(verify(copied(varied())))
    assert report.findings == ()
    assert report.settled
    kinds = {orphans.kind: orphans.count for orphans in report.survey.orphans}
    assert kinds == {"void entries": 1, "leftover entries": 1}
    assert report.survey.total.count == len(varied())
    assert report.survey.total.bytes == sum(map(len, varied()._objects.values()))


def says_the_same(key: str, one: bytes, other: bytes) -> bool:
    """Whether a reader takes both for the same."""
    if key.startswith("checkpoints/"):
        return decode_checkpoint(key, one) == decode_checkpoint(key, other)
    if key.startswith("chunks/"):
        return zlib.decompress(one) == zlib.decompress(other)
    return False


def is_never_read(report: VerifyReport, key: str) -> bool:
    kinds = {key: orphans.kind for orphans in report.survey.orphans for key in orphans.examples}
    return kinds.get(key) == "void entries"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_changed_byte_is_found_or_says_nothing(data: st.DataObject) -> None:
    store = copied(varied())
    key = data.draw(st.sampled_from(sorted(store._objects)))
    before = store._objects[key]
    place = data.draw(st.integers(0, len(before) - 1))
    change = data.draw(st.integers(1, 255))
    after = before[:place] + bytes([before[place] ^ change]) + before[place + 1 :]
    store._objects[key] = after
    report = asyncio.run(verify(store))
    if report.clean:
        assert says_the_same(key, before, after) or is_never_read(report, key)
    else:
        assert [finding.key for finding in report.findings] == [key]
        assert report.findings[0].meaning


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_two_damages_are_both_found(data: st.DataObject) -> None:
    """One may hide whether the other object is needed at all, but never invents a third."""
    store = copied(varied())
    keys = data.draw(
        st.lists(st.sampled_from(sorted(store._objects)), min_size=2, max_size=2, unique=True)
    )
    for key in keys:
        if data.draw(st.booleans()):
            del store._objects[key]
            store._sorted.remove(key)
        else:
            store._objects[key] = store._objects[key][:-1]
    report = asyncio.run(verify(store))
    found = {finding.key for finding in report.findings}
    if not any(key.startswith("checkpoints/") for key in store._objects):
        assert "manifest is what is missing" in report.findings[0].reason
        return
    assert found <= set(keys)


def test_only_the_very_last_entry_can_vanish_unseen() -> None:
    for key in sorted(varied()._objects):
        store = copied(varied())
        del store._objects[key]
        store._sorted.remove(key)
        report = asyncio.run(verify(store))
        found = [finding.key for finding in report.findings]
        seq = seq_of_key(key)
        if found == [key]:
            continue
        assert found == [], key
        if seq is None:
            # What is older leads there all the same, so nothing is lost.
            assert key.startswith(("checkpoints/", "chunks/"))
            assert report.position == asyncio.run(verify(copied(varied()))).position
        else:
            entry = asyncio.run(read_entry(varied(), seq))
            assert entry is not None
            last = entry.durable_before == seq and entry.body != b"never seen"
            assert last or entry.body == b"never seen"
