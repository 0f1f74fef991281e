from __future__ import annotations

import json
from typing import Any

import pytest

from taquba.errors import CorruptStore, IncompatibleStore, ObjectNotFound, StoreUnavailable
from taquba.journal import (
    Checkpoint,
    EpochMark,
    Position,
    collect,
    newest_checkpoint,
    publish_checkpoint,
)
from taquba.journal._checkpoint import checkpoint_key, decode_checkpoint, encode_checkpoint
from taquba.journal._position import entry_key
from taquba.objectstore import MemoryStore
from tests.journal.harness import ObedientStore, keys, open_log, read_words, run


def at(seq: int, **content: Any) -> Checkpoint:
    epochs = (EpochMark(0, 1, 4), EpochMark(6, 2, 10))
    position = Position(seq, 2, bytes([seq]) * 32, 4, epochs)
    return Checkpoint(position=position, created_at_ms=99, writer="ab", content=content)


def test_a_manifest_is_readable_and_survives() -> None:
    data = encode_checkpoint(at(12, chunks=["x", "y"], name="é"))
    assert decode_checkpoint("k", data) == at(12, chunks=["x", "y"], name="é")
    manifest = json.loads(data)
    assert manifest["seq"] == 12
    assert manifest["epochs"] == [[0, 1, 4], [6, 2, 10]]
    assert manifest["digest"] == "0c" * 32


def test_every_flipped_bit_of_a_manifest_is_noticed() -> None:
    data = encode_checkpoint(at(12, chunks=["x"]))
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1
        try:
            found = decode_checkpoint("the-key", bytes(damaged))
        except (CorruptStore, IncompatibleStore) as error:
            assert "the-key" in str(error)
        else:
            assert found == at(12, chunks=["x"])  # white space


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"not json", b'{"format": "x"}'])
def test_what_is_no_manifest(data: bytes) -> None:
    with pytest.raises(CorruptStore, match="the-key"):
        decode_checkpoint("the-key", data)


def resigned(**changes: Any) -> bytes:
    """A manifest with changes, and the sum that fits."""
    from taquba.journal._checkpoint import _self_digest

    manifest = json.loads(encode_checkpoint(at(12)))
    del manifest["sha256"]
    manifest.update(changes)
    return json.dumps({**manifest, "sha256": _self_digest(manifest)}).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"seq": "12"},
        {"seq": True},
        {"digest": "00"},
        {"digest": "zz" * 32},
        {"window": 0},
        {"epochs": []},
        {"epochs": [[0, 1]]},
        {"epochs": [[0, 1, 4], [6, 3, 10]]},
        {"epochs": [[0, 1, 4], [3, 2, 7]]},
        {"epochs": [[0, 1, 4], [6, 2, 11]]},
        {"epoch": 1},
        {"seq": 9},
        {"content": 5},
        {"version": 0},
    ],
)
def test_a_manifest_that_contradicts_itself(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptStore, match="the-key"):
        decode_checkpoint("the-key", resigned(**changes))


def test_a_newer_manifest_is_not_called_damage() -> None:
    with pytest.raises(IncompatibleStore, match="version 2"):
        decode_checkpoint("the-key", resigned(version=2))


def test_the_newest_is_the_highest() -> None:
    async def main() -> None:
        store = MemoryStore()
        assert await newest_checkpoint(store) is None
        await publish_checkpoint(store, at(30))
        await publish_checkpoint(store, at(12))
        await store.create("checkpoints/zzz", b"not ours")
        assert await newest_checkpoint(store) == at(30)

    run(main())


def test_a_manifest_under_a_wrong_key_is_damage() -> None:
    async def main() -> None:
        store = MemoryStore()
        await store.create(checkpoint_key(13), encode_checkpoint(at(12)))
        with pytest.raises(CorruptStore, match="number 12"):
            await newest_checkpoint(store)

    run(main())


def test_publishing_again_is_fine_and_another_history_is_not() -> None:
    async def main() -> None:
        store = MemoryStore()
        await publish_checkpoint(store, at(12, try_=1))
        await publish_checkpoint(store, at(12, try_=2))
        assert await newest_checkpoint(store) == at(12, try_=1)
        strange = Position(12, 2, b"?" * 32, 4, at(12).position.epochs)
        with pytest.raises(CorruptStore, match="digest"):
            await publish_checkpoint(
                store, Checkpoint(position=strange, created_at_ms=0, writer="cd")
            )

    run(main())


def test_a_checkpoint_collected_between_list_and_get_is_looked_for_again() -> None:
    async def main() -> None:
        memory = MemoryStore()
        store = ObedientStore(memory)
        await publish_checkpoint(memory, at(12))
        await publish_checkpoint(memory, at(30))
        gone: list[str] = []

        def vanish(operation: str, key: str) -> None:
            if operation == "get" and not gone:
                gone.append(key)
                raise ObjectNotFound("gone", key=key)

        store.fail = vanish
        assert await newest_checkpoint(store) == at(30)
        assert gone == [checkpoint_key(30)]

        def always(operation: str, key: str) -> None:
            if operation == "get":
                raise ObjectNotFound("gone", key=key)

        store.fail = always
        with pytest.raises(CorruptStore, match="cannot be read"):
            await newest_checkpoint(store)

    run(main())


async def _history(store: MemoryStore) -> list[Checkpoint]:
    """Three owners, five words each, a checkpoint after each word; what was left behind."""
    checkpoints: list[Checkpoint] = []
    for owner in range(3):
        log = await open_log(store, window=4)
        for number in range(5):
            await log.say(f"{owner}.{number}")
            checkpoints.append(log.checkpoint())
        await log.journal.close()
    return checkpoints


def test_collection_keeps_epoch_entries_and_the_newest_checkpoints() -> None:
    async def main() -> None:
        store = MemoryStore()
        checkpoints = await _history(store)
        for checkpoint in checkpoints:
            await publish_checkpoint(store, checkpoint)
        log = await keys(store, "journal/")
        newest, second = checkpoints[-1], checkpoints[-2]
        await store.create(entry_key(2), b"left behind in a skipped window")
        await store.create("journal/README", b"not ours")
        words = ObedientStore(store)
        done = await collect(words, newest, keep=2, batch=3)
        assert done.cut == second.position.seq
        assert done.checkpoints == 13
        epochs = [entry_key(mark.seq) for mark in newest.position.epochs]
        rest = [key for key in log if key >= entry_key(second.position.seq)]
        assert await keys(store, "journal/") == [*epochs, *rest, "journal/README"]
        assert done.entries == len(log) + 1 - len(epochs) - len(rest)
        assert await keys(store, "checkpoints/") == [
            checkpoint_key(second.position.seq),
            checkpoint_key(newest.position.seq),
        ]
        deletes = [key.split() for operation, key in words.calls if operation == "delete"]
        assert max(map(len, deletes)) == 3
        # Nobody may find a checkpoint whose entries are gone.
        assert [batch[0].split("/")[0] for batch in deletes].index("journal") == 5
        assert await collect(store, newest, keep=2) == type(done)(
            cut=done.cut, entries=0, checkpoints=0
        )
        assert await read_words(store) == [f"{o}.{n}" for o in range(3) for n in range(5)]

    run(main())


def test_collection_can_stop_anywhere_and_begin_again() -> None:
    async def main() -> None:
        store = MemoryStore()
        checkpoints = await _history(store)
        for checkpoint in checkpoints:
            await publish_checkpoint(store, checkpoint)
        flaky = ObedientStore(store)
        tries = 0

        def fail(operation: str, key: str) -> None:
            if operation == "delete" and tries % 2 == 0:
                raise StoreUnavailable("no", operation=operation, key=key)

        flaky.fail = fail
        while True:
            tries += 1
            try:
                await collect(flaky, checkpoints[-1], keep=1, batch=2)
            except StoreUnavailable:
                assert len(await read_words(store)) == 15
                continue
            break
        assert len(await read_words(store)) == 15

    run(main())


def test_collection_by_somebody_who_is_behind_touches_nothing_newer() -> None:
    async def main() -> None:
        store = MemoryStore()
        checkpoints = await _history(store)
        await publish_checkpoint(store, checkpoints[3])
        await publish_checkpoint(store, checkpoints[9])
        await publish_checkpoint(store, checkpoints[14])
        before = await keys(store)
        assert (await collect(store, checkpoints[2], keep=1)).entries == 0  # not published
        assert await keys(store) == before
        done = await collect(store, checkpoints[3], keep=1)  # the newest is another's
        assert done.cut == checkpoints[3].position.seq
        assert await keys(store, "checkpoints/") == [
            checkpoint_key(checkpoints[number].position.seq) for number in (3, 9, 14)
        ]

    run(main())


def test_collect_checks_its_arguments() -> None:
    for bad in ({"keep": 0}, {"batch": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            run(collect(MemoryStore(), at(12), **bad))
