"""Damage is found, named, and never repaired by guessing."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from taquba._msgpack import pack
from taquba.clock import ManualClock
from taquba.database import DatabaseConfig
from taquba.database._packs import Pack, chunk_key, decode_pack, encode_pack
from taquba.errors import CorruptStore, Fenced, IncompatibleStore
from taquba.journal import Journal, newest_checkpoint
from taquba.journal._checkpoint import checkpoint_key, encode_checkpoint
from taquba.objectstore import MemoryStore

from .harness import dump, keys, open_database, opened, put

pytestmark = pytest.mark.anyio


def _flipped(data: bytes) -> bytes:
    """The data with one bit flipped, so that it means something else, if anything at all."""
    content = zlib.decompress(data)
    for i in range(len(data) // 2, len(data)):
        other = data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]
        try:
            if zlib.decompress(other) == content:
                continue
        except zlib.error:
            pass
        return other
    raise AssertionError("there is none")


def _other_content_of_the_same_size(data: bytes) -> bytes:
    raw = bytearray(zlib.decompress(data))
    for i in range(1, len(raw)):
        raw[-i] ^= 1
        other = zlib.compress(raw, 1)
        if len(other) == len(data):
            return other
    raise AssertionError("there is none")


_SMALL_PACKS = DatabaseConfig(
    checkpoint_bytes=2**40, checkpoint_entries=2**40, keep_checkpoints=1, chunk_size=4096
)


async def _checkpointed() -> MemoryStore:
    """A store whose checkpoint has several packs, some of which override others."""
    store = MemoryStore()
    async with opened(store, config=_SMALL_PACKS) as database:
        for i in range(50):
            await put(database, i, b"value" * 100)
        await database.checkpoint()
        await put(database, 7, b"other" * 100)
        await database.checkpoint()
        statistics = database.statistics()
        assert statistics.chunks_reused
        await put(database, 100, b"tail")
    return store


@pytest.mark.parametrize("how", ["flip", "truncate", "longer", "empty", "other", "swap", "delete"])
async def test_a_damaged_chunk_is_named(how: str) -> None:
    store = await _checkpointed()
    key, second = (await keys(store, "chunks/"))[:2]
    data = await store.get(key)
    before = await keys(store, "")
    match how:
        case "flip":
            await store.put(key, _flipped(data))
        case "truncate":
            await store.put(key, data[:-10])
        case "longer":
            await store.put(key, data + b"x")
        case "empty":
            await store.put(key, b"")
        case "other":
            await store.put(key, _other_content_of_the_same_size(data))
        case "swap":
            await store.put(key, await store.get(second))
            await store.put(second, data)
        case _:
            await store.delete([key])
            before.remove(key)
    with pytest.raises(CorruptStore, match=f"{key}|{second}" if how == "swap" else key):
        await open_database(store)
    assert await keys(store, "") == before, "nothing may be written to a damaged store"


@pytest.mark.parametrize("how", ["flip", "truncate", "json", "chunks"])
async def test_a_damaged_manifest_is_named(how: str) -> None:
    store = await _checkpointed()
    key = (await keys(store, "checkpoints/"))[-1]
    data = await store.get(key)
    if how == "flip":
        data = data.replace(b'"epoch": 1', b'"epoch": 2', 1)
    elif how == "truncate":
        data = data[: len(data) // 2]
    elif how == "json":
        data = b"[]"
    else:
        manifest = json.loads(data)
        manifest["content"]["database"]["packs"].pop()
        data = json.dumps(manifest).encode()
    await store.put(key, data)
    with pytest.raises(CorruptStore, match=key.removeprefix("checkpoints/").removesuffix(".json")):
        await open_database(store)


async def _reforge(store: MemoryStore, change: Callable[[dict[str, Any]], None]) -> str:
    """Change what the newest manifest says of its database, and make its digest fit."""
    checkpoint = await newest_checkpoint(store)
    assert checkpoint is not None
    change(checkpoint.content["database"])
    await store.put(checkpoint_key(checkpoint.position.seq), encode_checkpoint(checkpoint))
    return f"checkpoint {checkpoint.position.seq} "


def _drop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda database: database.pop(name)


def _set(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda database: database.__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        *((_drop(name), "incomplete") for name in ("format", "size", "sha256", "packs", "epoch")),
        (_set("packs", [{"sha256": "00"}]), "incomplete"),
        (_set("packs", 7), "incomplete"),
        (_set("packs", []), "cannot make up"),
        (_set("size", -4096), "cannot make up"),
        (_set("size", 2**30), "cannot make up"),
        (_set("size", 5000), "cannot make up"),
        (_set("block_size", 0), "incomplete"),
        (_set("sha256", "0" * 64), "make up a file with sha256"),
        (lambda database: database["packs"].reverse(), "make up a file with sha256"),
        (lambda database: database["packs"].extend(database["packs"][:-1]), "with sha256"),
        (lambda database: database["packs"].pop(), "with sha256|cannot|no pack holds"),
    ],
)
async def test_a_manifest_that_does_not_make_sense_is_named(
    change: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    store = await _checkpointed()
    name = await _reforge(store, change)
    with pytest.raises(CorruptStore, match=f"^{name}.*({complaint})"):
        await open_database(store)


async def test_a_database_of_a_newer_format_is_refused() -> None:
    store = await _checkpointed()
    await _reforge(store, _set("format", 3))
    with pytest.raises(IncompatibleStore, match="format 3.*upgrade"):
        await open_database(store)


@pytest.mark.parametrize(
    ("renumber", "complaint"),
    [
        (lambda places: places[::-1], "not in order"),
        (lambda places: [places[0]] * len(places), "not in order"),
        (lambda places: [place + 1 for place in places], "no pack holds its block"),
        (lambda places: [place + 2**20 for place in places], "no pack holds its block"),
        (lambda places: [*places[:-1], places[-1] + 2**31], "no pack holds its block"),
    ],
)
async def test_wrong_places_in_a_chunk_are_found(
    renumber: Callable[[list[int]], list[int]], complaint: str
) -> None:
    """Even if every digest fits: a writer that errs must not be believed."""
    store = await _checkpointed()

    async def forge(database: dict[str, Any]) -> str:
        listed = database["packs"][0]
        pack = Pack(listed["sha256"], listed["blocks"], listed["bytes"])
        key = chunk_key(database["epoch"], pack.digest)
        places, blocks = decode_pack(pack, key, await store.get(key), database["block_size"], "")
        forged, data = encode_pack(renumber(list(places)), bytes(blocks))
        key = chunk_key(database["epoch"], forged.digest)
        await store.put(key, data)
        listed.update({"sha256": forged.digest, "bytes": forged.size})
        return key

    checkpoint = await newest_checkpoint(store)
    assert checkpoint is not None
    key = await forge(checkpoint.content["database"])
    name = await _reforge(store, lambda database: database.update(checkpoint.content["database"]))
    with pytest.raises(CorruptStore, match=f"({key}|^{name}).*{complaint}"):
        await open_database(store)


@pytest.mark.parametrize("how", ["flip", "truncate", "empty"])
async def test_a_damaged_newest_entry_is_named(how: str) -> None:
    store = await _checkpointed()
    key = (await keys(store, "journal/"))[-1]
    data = await store.get(key)
    if how == "flip":
        data = data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
    else:
        data = data[:30] if how == "truncate" else b""
    await store.put(key, data)
    before = await keys(store, "")
    with pytest.raises(CorruptStore, match=key):
        await open_database(store)
    assert await keys(store, "") == before


class _Writer:
    """A state machine that writes the bodies that it is given."""

    def __init__(self, bodies: list[bytes]) -> None:
        self.bodies = bodies

    async def restore(self, checkpoint: object) -> None: ...
    def apply(self, entry: object) -> None: ...
    def check(self, metadata: bytes) -> None: ...
    def sealed(self, position: object) -> None: ...
    def failed(self, error: object) -> None: ...
    def seal(self, seq: int) -> bytes | None:
        return self.bodies.pop(0)


async def _append_body(store: MemoryStore, body: bytes) -> None:
    metadata = pack({"body": 1, "modules": {}})
    journal = await Journal.open(store, _Writer([body]), clock=ManualClock(), metadata=metadata)
    await journal.durable(journal.append())
    await journal.close()


async def _patchset(sql: str) -> bytes:
    """What a database makes of a statement."""
    import apsw

    from taquba.database._state import State

    from .harness import ITEMS

    state = State(2**20)
    state.create()
    state.define([*ITEMS.statements, "CREATE TABLE other (a TEXT NOT NULL PRIMARY KEY)"])
    state.execute("INSERT INTO items VALUES (1, NULL, NULL)")
    session = apsw.Session(state.connection, "main")
    session.attach()
    state.execute(sql)
    patchset = session.patchset()
    session.close()
    state.close()
    return patchset


@pytest.mark.parametrize(
    ("sql", "complaint"),
    [
        ("UPDATE items SET value = x'00' WHERE key = 1", "items.*NOTFOUND"),
        ("DELETE FROM items WHERE key = 1", "items.*NOTFOUND"),
        ("INSERT INTO items VALUES (7, NULL, NULL)", "items.*CONFLICT"),
        ("INSERT INTO items VALUES (8, NULL, 'taken')", "items.*CONSTRAINT"),
        ("INSERT INTO other VALUES ('a')", "no table 'other'"),
    ],
)
async def test_a_patchset_that_does_not_fit_is_corruption(sql: str, complaint: str) -> None:
    store = MemoryStore()
    async with opened(store) as database:
        await put(database, 7, b"", "taken")
    await _append_body(store, pack((1, [], await _patchset(sql))))
    with pytest.raises(CorruptStore, match=complaint):
        await open_database(store)


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", pack("text"), pack([]), pack([1, "x", 3]), pack([1, []])]
)
async def test_a_body_of_the_wrong_shape_is_corruption(body: bytes) -> None:
    store = MemoryStore()
    await _append_body(store, body)
    with pytest.raises(CorruptStore, match="journal entry"):
        await open_database(store)


async def test_a_body_of_a_newer_version_is_refused() -> None:
    store = MemoryStore()
    await _append_body(store, pack((2, "something new")))
    with pytest.raises(IncompatibleStore, match="body version 2"):
        await open_database(store)


async def test_an_owner_of_a_newer_version_that_came_to_nothing_is_heeded() -> None:
    """It died between taking the store over and migrating it."""
    store = MemoryStore()
    async with opened(store) as database:
        await put(database, 1)
    metadata = pack({"body": 1, "modules": {"items": 2}})
    journal = await Journal.open(store, _Writer([]), clock=ManualClock(), metadata=metadata)
    await journal.close()
    before = await keys(store, "")
    with pytest.raises(IncompatibleStore, match=r"'items' tables have version 2"):
        await open_database(store)
    assert await keys(store, "") == before


async def test_statements_that_do_not_apply_are_corruption() -> None:
    store = MemoryStore()
    await _append_body(store, pack((1, ["CREATE TABLE items (nonsense"], b"")))
    with pytest.raises(CorruptStore, match="does not apply"):
        await open_database(store)


async def test_the_replaced_owner_is_fenced_and_acknowledges_nothing_more() -> None:
    store = MemoryStore()
    first = await open_database(store)
    told: list[object] = []
    first.on_failure(told.append)
    await put(first, 1, b"first")
    second = await open_database(store)
    with pytest.raises(Fenced):
        await put(first, 2, b"lost")
    assert isinstance(first.failure, Fenced)
    assert len(told) == 1
    with pytest.raises(Fenced), first.transaction():
        pass
    with pytest.raises(Fenced):
        await first.barrier()
    with pytest.raises(Fenced):
        await first.checkpoint()
    await first.close()
    await put(second, 3, b"second")
    assert [row[0] for row in dump(second)["items"]] == [1, 3]
    await second.close()
