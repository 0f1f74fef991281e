from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from taquba.errors import (
    CorruptStore,
    Fenced,
    IncompatibleStore,
    StoreUnavailable,
    TaqubaError,
)
from taquba.journal import Checkpoint, Journal, collect, publish_checkpoint
from taquba.journal._entry import decode_entry
from taquba.journal._position import entry_key
from taquba.objectstore import MemoryStore, ObjectInfo
from tests.journal.harness import (
    CLOCK,
    Log,
    ObedientStore,
    Words,
    keys,
    open_log,
    read_words,
    rounds,
    run,
)


async def checkpointed(log: Log, store: MemoryStore, keep: int = 1) -> None:
    await publish_checkpoint(store, log.checkpoint())
    await collect(store, log.checkpoint(), keep=keep)


def test_a_checkpoint_is_where_reading_begins() -> None:
    async def main() -> None:
        store = MemoryStore()
        log = await open_log(store)
        await log.say("a")
        await checkpointed(log, store)
        await log.say("b")
        await log.journal.close()
        second = await open_log(store)
        assert second.machine.words == ["a", "b"]
        assert [checkpoint is None for checkpoint in second.machine.restored] == [False]
        assert second.machine.metadata == []

    run(main())


def test_of_two_that_open_at_once_the_slower_reads_on_and_wins() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        store.holding = True
        first = asyncio.ensure_future(open_log(store))
        second = asyncio.ensure_future(open_log(store))
        await rounds()
        assert len(store.held) == 2
        store.release(1)
        await rounds()
        store.release_all()
        logs = [await first, await second]
        assert [log.journal.epoch for log in logs] == [2, 1]
        await logs[0].say("x")
        with pytest.raises(Fenced):
            await logs[1].say("y")

    run(main())


def test_a_takeover_at_a_collected_tail_is_void() -> None:
    """The second look: the opener's entry landed where the log had long gone on."""

    async def main() -> None:
        memory = MemoryStore()
        owner = await open_log(memory, window=4)
        await owner.say("a")
        store = ObedientStore(memory)
        store.holding = True
        opening = asyncio.ensure_future(open_log(store))
        await rounds()
        assert store.held[0][0] == entry_key(5)
        for word in "bcdefgh":
            await owner.say(word)
        await checkpointed(owner, memory)
        assert entry_key(5) not in await keys(memory)
        store.release_all()
        late = await opening
        assert late.machine.words == list("abcdefgh")
        assert len(late.machine.restored) == 2
        assert late.journal.position.epochs[-1].seq == owner.journal.position.seq
        with pytest.raises(Fenced):
            await owner.say("i")

    run(main())


def test_a_reader_that_collection_overtook_starts_over_without_writing() -> None:
    async def main() -> None:
        memory = MemoryStore()
        owner = await open_log(memory, window=4)
        for word in "abcdefgh":
            await owner.say(word)
        store = ObedientStore(memory)
        swept = False

        def sweep(operation: str, key: str) -> None:
            nonlocal swept
            if operation == "get" and key == entry_key(6) and not swept:
                swept = True
                raise_after = asyncio.ensure_future(checkpointed(owner, memory))
                assert raise_after

        class Slow(ObedientStore):
            async def get(self, key: str) -> bytes:
                sweep("get", key)
                await rounds(30)
                return await super().get(key)

        late = await open_log(Slow(memory), prefetch=1)
        assert swept
        assert late.machine.words == list("abcdefgh")
        assert len(late.machine.restored) == 2
        assert len(store.creates) == 0

    run(main())


def test_a_tail_that_was_collected_before_the_entry_is_sent_gets_none() -> None:
    """The first look: no stray entry that could lead others astray."""

    async def main() -> None:
        memory = MemoryStore()
        owner = await open_log(memory, window=4)
        await owner.say("a")

        class Slow(ObedientStore):
            looks = 0

            async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
                if prefix == "checkpoints/":
                    self.looks += 1
                    if self.looks == 2:
                        for word in "bcdefgh":
                            await owner.say(word)
                        await checkpointed(owner, memory)
                async for info in super().list(prefix, start_after):
                    yield info

        store = Slow(memory)
        late = await open_log(store)
        assert late.machine.words == list("abcdefgh")
        assert store.creates == [entry_key(owner.journal.position.seq)]

    run(main())


def test_a_checkpoint_that_is_gone_is_replaced_by_a_newer_one() -> None:
    async def main() -> None:
        store = MemoryStore()
        owner = await open_log(store)
        await owner.say("a")
        await checkpointed(owner, store)

        class Late(Words):
            async def restore(self, checkpoint: Checkpoint | None) -> None:
                await super().restore(checkpoint)
                if len(self.restored) == 1:
                    await owner.say("b")
                    await checkpointed(owner, store)
                    raise CorruptStore("a chunk is missing")

        machine = Late()
        journal = await Journal.open(store, machine, clock=CLOCK)
        assert machine.words == ["a", "b"]
        assert journal.epoch == 2

        class Broken(Words):
            async def restore(self, checkpoint: Checkpoint | None) -> None:
                raise CorruptStore("a chunk is missing")

        with pytest.raises(CorruptStore, match="chunk"):
            await Journal.open(store, Broken(), clock=CLOCK)

    run(main())


def test_metadata_of_a_newer_version_stops_an_opener_before_it_writes() -> None:
    async def main() -> None:
        store = MemoryStore()
        newer = await open_log(store, metadata=b"version 9")
        await newer.say("a")

        class Old(Words):
            def check(self, metadata: bytes) -> None:
                raise IncompatibleStore(f"{metadata!r}")

        with pytest.raises(IncompatibleStore, match="version 9"):
            await Journal.open(store, Old(), clock=CLOCK)
        await newer.say("b")
        assert await read_words(store) == ["a", "b"]

    run(main())


def test_a_writer_that_slept_through_takeover_and_collection_is_fenced() -> None:
    async def main() -> None:
        memory = MemoryStore()
        store = ObedientStore(memory)
        sleeper = await open_log(store, window=4)
        await sleeper.say("a")
        store.holding = True
        wait = sleeper.say("never")
        await rounds()
        owner = await open_log(memory)
        for word in "bcdefgh":
            await owner.say(word)
        await checkpointed(owner, memory)
        await publish_checkpoint(memory, owner.checkpoint())
        store.release_all()
        with pytest.raises(Fenced):
            await wait
        assert await read_words(memory) == list("abcdefgh")

    run(main())


@pytest.mark.parametrize("writers", [1, 20])
@pytest.mark.parametrize("latency", [0.0, 0.02, 0.1])
def test_a_log_in_full_use_is_taken_over_soon(writers: int, latency: float) -> None:
    """Its tail moves on before any entry for it arrives, so it has to be met ahead."""

    async def main() -> None:
        memory = MemoryStore()
        store = ObedientStore(memory, latency=latency)
        owner = await open_log(store)
        heard: list[str] = []

        async def speak(name: int) -> None:
            number = 0
            while True:
                word = f"{name}.{number}"
                try:
                    await owner.say(word)
                except TaqubaError:
                    return
                heard.append(word)
                number += 1
                if number % 50 == 0:
                    await asyncio.sleep(0.001)

        speakers = [asyncio.ensure_future(speak(name)) for name in range(writers)]
        await asyncio.sleep(10 * latency)
        began = CLOCK.monotonic()
        rival_store = ObedientStore(memory, latency=latency)
        rival = await open_log(rival_store)
        assert len(rival_store.creates) <= 3
        assert CLOCK.monotonic() - began <= 60 * latency + 0.1
        await asyncio.wait(speakers)
        assert isinstance(owner.journal.failure, Fenced)
        assert set(heard) <= set(rival.machine.words)
        assert len(rival.machine.words) == len(set(rival.machine.words))
        await rival.say("mine")
        await rival.journal.close()
        assert (await read_words(memory))[-1] == "mine"
        if latency:
            mark = rival.journal.position.epochs[-1].seq
            assert decode_entry("", await memory.get(entry_key(mark))).ahead

    run(main())


@pytest.mark.parametrize("fate", ["dies", "loses the request", "loses the answer"])
def test_meeting_a_log_ahead_survives(fate: str) -> None:
    async def main() -> None:
        memory = MemoryStore()
        owner = await open_log(ObedientStore(memory, latency=0.02))
        stop = False

        async def speak() -> None:
            number = 0
            while not stop:
                try:
                    await owner.say(str(number))
                except TaqubaError:
                    return
                number += 1

        class Fateful(ObedientStore):
            async def create(self, key: str, data: bytes) -> None:
                nonlocal stop
                first = not self.creates
                if first and fate == "loses the request":
                    self.creates.append(key)
                    raise StoreUnavailable("no answer", key=key)
                stop = stop or fate == "dies"
                await super().create(key, data)
                if first and fate == "loses the answer":
                    raise StoreUnavailable("no answer", key=key)

        speaker = asyncio.ensure_future(speak())
        await asyncio.sleep(0.5)
        store = Fateful(memory, latency=0.02)
        rival = await open_log(store)
        assert decode_entry("", await memory.get(store.creates[0])).ahead == (
            fate != "loses the request"
        )
        assert rival.machine.words == [str(number) for number in range(len(rival.machine.words))]
        await rival.say("mine")
        await speaker
        expected = [*rival.machine.words]
        await rival.journal.close()
        assert await read_words(memory) == expected
        assert len(store.creates) <= (2 if fate == "dies" else 3) + 1

    run(main())


def test_an_entry_ahead_of_a_writer_that_died_is_skipped() -> None:
    async def main() -> None:
        memory = MemoryStore()
        owner = await open_log(memory, window=4)
        await owner.say("a")
        from taquba.journal._entry import Kind, encode_entry

        tail = owner.journal.position
        data, _ = encode_entry(
            kind=Kind.EPOCH,
            epoch=tail.epoch + 1,
            seq=tail.seq + 3,
            writer=b"r" * 16,
            previous=bytes(32),
            committed_at_ms=0,
            window=4,
            durable_before=tail.seq,
            body=b"",
            ahead=True,
        )
        await memory.create(entry_key(tail.seq + 3), data)
        next_owner = await open_log(memory)
        assert next_owner.machine.words == ["a"]
        assert next_owner.journal.position.seq == tail.seq + 4
        assert next_owner.journal.epoch == 2
        await next_owner.say("b")
        assert await read_words(memory) == ["a", "b"]

    run(main())


def test_a_checkpoint_of_another_history_voids_what_was_read() -> None:
    async def main() -> None:
        memory = MemoryStore()
        owner = await open_log(memory, window=4)
        for word in "abc":
            await owner.say(word)
        other = MemoryStore()
        stranger = await open_log(other, window=4)
        for word in "xy":
            await stranger.say(word)
        store = ObedientStore(memory)
        store.holding = True
        opening = asyncio.ensure_future(open_log(store))
        await rounds()
        await publish_checkpoint(memory, stranger.checkpoint())
        store.release_all()
        with pytest.raises(CorruptStore, match="does not continue"):
            await opening

    run(main())
