"""Stores in which every digest is right, and what they say is wrong all the same."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from taquba.database import verify
from taquba.database._chunks import ChunkStore, Contents
from taquba.errors import CorruptStore, IncompatibleStore
from taquba.journal import Checkpoint, EpochMark, checkpoint_key, entry_key, read_manifests
from taquba.journal._checkpoint import _self_digest, encode_checkpoint
from taquba.objectstore import MemoryStore
from taquba.queue import QUEUE_CHECKS
from taquba.queue._schema import QUEUE_SCHEMA

from .harness import dump, keys, open_database, opened, put

pytestmark = pytest.mark.anyio


async def _made() -> MemoryStore:
    """Two checkpoints of one epoch."""
    store = MemoryStore()
    async with opened(store) as database:
        for number in range(10):
            await put(database, number, b"value", str(number))
        await database.checkpoint()
        for number in range(10, 20):
            await put(database, number, b"value", str(number))
        await database.checkpoint()
        await put(database, 30, b"tail")
    return store


async def _forge(
    store: MemoryStore, place: int, change: Callable[[apsw.Connection], object], folder: Path
) -> str:
    """Let the checkpoint at `place` hold something else; the key of its manifest."""
    checkpoint = list((await read_manifests(store)).read.values())[place]
    contents = Contents.from_json("it", checkpoint.content)
    path = str(folder / "forged.db")
    chunks = ChunkStore(store, transfers=1)
    await chunks.download(contents, path)
    connection = apsw.Connection(path)
    change(connection)
    connection.close()
    forged = await chunks.upload(
        path, epoch=contents.epoch, chunk_size=8192, modules=contents.modules
    )
    key = checkpoint_key(checkpoint.position.seq)
    await store.put(
        key, encode_checkpoint(dataclasses.replace(checkpoint, content=forged.to_json()))
    )
    return key


def _empty_index(connection: apsw.Connection) -> None:
    """An index that knows none of the rows, though its definition says all."""
    query = "SELECT sql FROM sqlite_schema WHERE name = 'items_by_tag'"
    ((sql,),) = connection.execute(query).fetchall()
    connection.execute("DROP INDEX items_by_tag")
    connection.execute(f"{sql} WHERE key < 0")
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'items_by_tag'", (sql,))


def _run(statement: str) -> Callable[[apsw.Connection], object]:
    return lambda connection: connection.execute(statement).fetchall()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_run("DELETE FROM items WHERE key = 7"), "lacks the row with key 7"),
        (_run("INSERT INTO items VALUES (12345, NULL, NULL)"), "has a row with key 12345"),
        (_run("UPDATE items SET value = x'00' WHERE key = 7"), "row with key 7 differs in value"),
        (_run("UPDATE items SET value = 'value' WHERE key = 7"), "key 7 differs in value"),
        (_run("INSERT INTO pairs VALUES ('a', 'b')"), "has a row with a 'a', b 'b'"),
        (_run("DELETE FROM items"), "lacks the row with key 0"),
        (_run("DROP INDEX items_by_tag"), "index 'items_by_tag'"),
        (_run("CREATE TABLE more (a INTEGER NOT NULL PRIMARY KEY)"), "table 'more'"),
        (_empty_index, "items_by_tag"),
    ],
)
async def test_a_checkpoint_that_says_something_else(
    change: Callable[[apsw.Connection], object], complaint: str, tmp_path: Path
) -> None:
    store = await _made()
    key = await _forge(store, 1, change, tmp_path)
    report = await verify(store)
    assert [finding.key for finding in report.findings] == [key]
    assert complaint in report.findings[0].reason
    assert [checkpoint.outcome for checkpoint in report.checkpoints] == [
        "replayed from",
        "damaged",
    ]
    with pytest.raises(CorruptStore, match=key) as raised:
        report.raise_for_damage()
    assert raised.value.key == key


async def test_a_value_of_another_type_is_another_value(tmp_path: Path) -> None:
    store = MemoryStore()
    async with opened(store) as database:
        await database.checkpoint()
        with database.transaction() as tx:
            tx.execute("INSERT INTO items VALUES (1, 7, NULL)")
        await tx.durable()
        await database.checkpoint()
    key = await _forge(store, 1, _run("UPDATE items SET value = 7.0"), tmp_path)
    report = await verify(store)
    assert [finding.key for finding in report.findings] == [key]
    assert "the type of a value" in report.findings[0].reason


async def test_a_base_whose_index_is_wrong(tmp_path: Path) -> None:
    store = await _made()
    key = await _forge(store, 0, _empty_index, tmp_path)
    report = await verify(store)
    assert report.findings[0].key == key
    assert "items_by_tag" in report.findings[0].reason


def _elsewhere(checkpoint: Checkpoint) -> Checkpoint:
    position = dataclasses.replace(checkpoint.position, digest=b"x" * 32)
    return dataclasses.replace(checkpoint, position=position)


def _other_epochs(checkpoint: Checkpoint) -> Checkpoint:
    position = checkpoint.position
    marks = (EpochMark(0, 1, 16), EpochMark(16, 2, 32))
    position = dataclasses.replace(position, epoch=2, epochs=marks, seq=position.seq + 5)
    return dataclasses.replace(checkpoint, position=position)


async def test_a_checkpoint_at_a_place_that_the_log_did_not_come_through() -> None:
    store = await _made()
    seq, checkpoint = list((await read_manifests(store)).read.items())[1]
    await store.put(checkpoint_key(seq), encode_checkpoint(_elsewhere(checkpoint)))
    report = await verify(store)
    assert [finding.key for finding in report.findings] == [checkpoint_key(seq)]
    assert "contradicts the entries" in report.findings[0].reason


async def test_a_checkpoint_beyond_the_tail_shows_that_entries_are_missing() -> None:
    store = await _made()
    seq, checkpoint = list((await read_manifests(store)).read.items())[1]
    forged = _other_epochs(checkpoint)
    await store.put(checkpoint_key(forged.position.seq), encode_checkpoint(forged))
    report = await verify(store)
    assert not report.clean
    assert report.findings[0].key == f"journal/{seq + 1:020d}"


# -- a newer taquba, or a flipped bit ---------------------------------------------------------


async def test_an_entry_of_a_newer_version_is_no_damage() -> None:
    store = await _made()
    key = (await keys(store, "journal/"))[-1]
    data = bytearray(await store.get(key))
    struct.pack_into(">H", data, 8, 2)
    await store.put(key, bytes(data))
    report = await verify(store)
    assert [finding.key for finding in report.findings] == [key]
    assert "may be damaged" in report.findings[0].reason
    struct.pack_into(">I", data, 136, zlib.crc32(data[:136]))
    await store.put(key, bytes(data))
    with pytest.raises(IncompatibleStore):
        await verify(store)


async def test_an_epoch_entry_of_a_newer_version_is_no_damage() -> None:
    store = await _made()
    key = (await keys(store, "journal/"))[0]
    data = bytearray(await store.get(key))
    struct.pack_into(">H", data, 8, 2)
    await store.put(key, bytes(data))
    assert [finding.key for finding in (await verify(store)).findings] == [key]
    struct.pack_into(">I", data, 136, zlib.crc32(data[:136]))
    await store.put(key, bytes(data))
    with pytest.raises(IncompatibleStore):
        await verify(store)


async def test_a_manifest_of_a_newer_version_is_no_damage() -> None:
    store = await _made()
    key = (await keys(store, "checkpoints/"))[-1]
    manifest = json.loads(await store.get(key))
    manifest["version"] = 3
    await store.put(key, json.dumps(manifest).encode())
    assert [finding.key for finding in (await verify(store)).findings] == [key]
    del manifest["sha256"]
    manifest["sha256"] = _self_digest(manifest)
    await store.put(key, json.dumps(manifest).encode())
    with pytest.raises(IncompatibleStore):
        await verify(store)


async def test_an_epoch_entry_that_is_another_one() -> None:
    """Its digests are right, and so is its number; but the checkpoints remember another."""
    store = await _made()
    other = MemoryStore()
    async with opened(other) as database:
        await put(database, 1)
    async with opened(other) as database:
        second = database.position.epochs[1].seq
    key = (await keys(store, "journal/"))[0]
    await store.put(key, _renumbered(await other.get(entry_key(second)), 0))
    report = await verify(store)
    assert [finding.key for finding in report.findings] == [key]
    assert "the checkpoints know epoch 1" in report.findings[0].reason


def _renumbered(data: bytes, seq: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(">Q", changed, 24, seq)
    struct.pack_into(">I", changed, 136, zlib.crc32(changed[:136]))
    return bytes(changed)


# -- what findings advise ---------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["checkpoints/", "chunks/"])
async def test_what_is_said_to_lose_nothing_loses_nothing(prefix: str) -> None:
    store = await _made()
    async with opened(_copy(store)) as database:
        whole = dump(database)
    victim = (await keys(store, prefix))[-1]
    if prefix == "chunks/":
        newest = list((await read_manifests(store)).read.values())
        only = [Contents.from_json("it", checkpoint.content).chunk_keys() for checkpoint in newest]
        victim = next(iter(only[1] - only[0]))
    await store.put(victim, b"damaged")
    with pytest.raises(CorruptStore):
        await open_database(_copy(store))
    (finding,) = (await verify(store)).findings
    manifest = (await keys(store, "checkpoints/"))[-1]
    assert f"Nothing is lost, since what is older leads there too: move {manifest}" in (
        finding.meaning
    )
    await store.delete([manifest])
    async with opened(store) as database:
        assert dump(database) == whole


def _copy(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    copy._objects, copy._sorted = dict(store._objects), list(store._sorted)
    return copy


# -- the checks of the queue ------------------------------------------------------------------


def _queue_state(*statements: str) -> list[str]:
    connection = apsw.Connection(":memory:")
    for statement in (*QUEUE_SCHEMA.statements, *statements):
        connection.execute(statement).fetchall()
    told = [text for check in QUEUE_CHECKS for text in check(connection.execute)]
    connection.close()
    return told


def _job(seq: int, queue: int = 1, state: int = 0, times: str = "NULL, NULL, NULL") -> str:
    return (
        "INSERT INTO jobs (seq, id, queue, state, priority, attempts, max_attempts, enqueued_at,"
        f" run_at, claimed_at, ended_at, payload) VALUES ({seq}, 'job-{seq}', {queue}, {state}, 0,"
        f" 0, 3, 0, {times}, x'')"
    )


def _queue(*counters: int) -> str:
    return f"INSERT INTO queues VALUES (1, 'mail', {', '.join(map(str, counters))})"


@pytest.mark.parametrize(
    ("statements", "complaint"),
    [
        ([_queue(1, 0, 0, 0, 0), _job(1)], ""),
        ([_queue(1, 0, 0, 7, 0), _job(1)], ""),
        ([_queue(2, 0, 0, 0, 0), _job(1)], "counts 2 pending jobs, and has 1"),
        ([_queue(0, 0, 0, 0, 0), _job(1, state=3, times="0, 0, 0")], "0 done jobs, and has 1"),
        ([_queue(0, 0, 0, 0, 0), _job(1, state=9, times="0, 0, 0")], "state 9, which there is not"),
        ([_queue(0, 0, 0, 0, 0), _job(1, queue=2)], "queue number 2, which there is not"),
        ([_queue(0, 1, 0, 0, 0), _job(1, state=1)], "is scheduled, but no time says since when"),
        ([_queue(0, 0, 1, 0, 0), _job(1, state=2)], "is claimed, but"),
        ([_queue(0, 0, 0, 0, 1), _job(1, state=4)], "is dead, but"),
        ([_queue(0, 0, 0, 0, 0), _queue(0, 0, 0, 0, 0).replace("1,", "2,", 1)], "2 queues named"),
    ],
)
def test_the_checks_of_the_queue(statements: list[str], complaint: str) -> None:
    told = _queue_state(*statements)
    assert len(told) == bool(complaint)
    assert complaint in "".join(told)


def test_a_store_without_queues_passes_the_checks_of_the_queue() -> None:
    connection = apsw.Connection(":memory:")
    assert [text for check in QUEUE_CHECKS for text in check(connection.execute)] == []
    connection.close()
