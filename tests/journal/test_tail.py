"""Reading on in a log, with as few requests as can be."""

from __future__ import annotations

import asyncio
import pickle
from contextlib import aclosing

import pytest

from taquba.errors import CorruptStore
from taquba.journal import START, JournalGap, Overtaken, Position, Tail, collect, publish_checkpoint
from taquba.journal._position import entry_key
from taquba.objectstore import MemoryStore
from tests.journal.harness import Log, ObedientStore, keys, open_log, run


async def words_from(tail: Tail, position: Position) -> tuple[list[str], Position]:
    words: list[str] = []
    async with aclosing(tail.entries(position)) as entries:
        async for entry, after in entries:
            position = after
            words += entry.body.decode().split()
    return words, position


async def checkpointed(log: Log, store: MemoryStore) -> None:
    await publish_checkpoint(store, log.checkpoint())
    await collect(store, log.checkpoint(), keep=1)


def test_an_idle_log_costs_one_request() -> None:
    async def main() -> None:
        memory = MemoryStore()
        log = await open_log(memory)
        store = ObedientStore(memory)
        tail = Tail(store)
        await log.say("a")
        words, position = await words_from(tail, START)
        assert words == ["a"]
        for _ in range(2):  # first it hopes for as much as it found
            await words_from(tail, position)
            assert tail.at_tail
        for _ in range(5):
            store.calls.clear()
            assert await words_from(tail, position) == ([], position)
            assert store.calls == [("get", entry_key(position.seq))]

    run(main())


@pytest.mark.parametrize("count", [1, 3, 10, 40])
def test_what_comes_regularly_is_read_in_one_round_trip(count: int) -> None:
    async def main() -> None:
        memory = MemoryStore()
        log = await open_log(memory)
        store = ObedientStore(memory, latency=0.01)
        tail = Tail(store)
        _, position = await words_from(tail, START)
        for turn in range(5):
            said = [f"{turn}.{number}" for number in range(count)]
            for word in said:
                await log.say(word)
            store.calls.clear()
            store.most_active = 0
            words, position = await words_from(tail, position)
            while not tail.at_tail:
                more, position = await words_from(tail, position)
                words += more
            assert words == said
            if turn > 2:
                assert len(store.calls) == count + 1
                assert store.most_active == count + 1
                assert {operation for operation, _ in store.calls} == {"get"}

    run(main())


def test_a_backlog_is_listed() -> None:
    async def main() -> None:
        memory = MemoryStore()
        log = await open_log(memory)
        store = ObedientStore(memory)
        tail = Tail(store, prefetch=8)
        _, position = await words_from(tail, START)
        _, position = await words_from(tail, position)
        said = [str(number) for number in range(100)]
        for word in said:
            await log.say(word)
        store.calls.clear()
        words, position = await words_from(tail, position)
        assert words == said
        assert not tail.at_tail  # there might be more since it was listed
        assert [call[0] for call in store.calls].count("list") == 1
        assert len(store.calls) == 101
        assert store.most_active <= 8
        words, position = await words_from(tail, position)
        assert words == []
        assert tail.at_tail

    run(main())


def test_what_is_said_while_it_reads_does_not_keep_it_for_ever() -> None:
    async def main() -> None:
        memory = MemoryStore()
        log = await open_log(memory)
        for number in range(20):
            await log.say(str(number))
        tail = Tail(memory, prefetch=4)
        words: list[str] = []
        async with aclosing(tail.entries(START)) as entries:
            async for entry, _ in entries:
                words += entry.body.decode().split()
                await log.say("more")
        assert words == [str(number) for number in range(20)]
        assert not tail.at_tail

    run(main())


def test_a_look_may_fail_and_be_repeated() -> None:
    async def main() -> None:
        memory = MemoryStore()
        log = await open_log(memory)
        for word in "abcdef":
            await log.say(word)
        store = ObedientStore(memory)
        tail = Tail(store)

        def fail(operation: str, key: str) -> None:
            if key == entry_key(18):
                raise ConnectionError

        store.fail = fail
        position = START
        words: list[str] = []
        with pytest.raises(ConnectionError):
            async with aclosing(tail.entries(position)) as entries:
                async for entry, after in entries:
                    words += entry.body.decode().split()
                    position = after
        assert words == ["a", "b"]
        store.fail = lambda operation, key: None
        assert (await words_from(tail, position))[0] == ["c", "d", "e", "f"]

    run(main())


def test_takeovers_are_followed_and_vouched_for_once() -> None:
    async def main() -> None:
        memory = MemoryStore()
        tail = Tail(store := ObedientStore(memory))
        logs: list[Log] = []
        for number in range(5):
            logs.append(await open_log(memory, window=4))
            await logs[-1].say(str(number))
        await publish_checkpoint(memory, logs[-1].checkpoint())
        words, position = await words_from(tail, START)
        assert words == list("01234")
        assert position == logs[-1].journal.position
        looks = [call for call in store.calls if call == ("list", "checkpoints/")]
        assert len(looks) == 1  # that checkpoint knows them all
        logs.append(await open_log(memory))  # which it does not know of
        await logs[-1].say("5")
        words, position = await words_from(tail, position)
        assert words == ["5"]
        assert position == logs[-1].journal.position

    run(main())


def test_an_epoch_entry_that_no_checkpoint_knows_of_is_a_stray() -> None:
    async def main() -> None:
        memory = MemoryStore()
        log = await open_log(memory, window=4)
        await log.say("a")
        place = log.journal.position
        slow = ObedientStore(memory)
        slow.holding = True
        opening = asyncio.ensure_future(open_log(slow))
        while not slow.held:
            await asyncio.sleep(0)
        for word in "bcdef":
            await log.say(word)
        await checkpointed(log, memory)
        assert entry_key(place.seq) not in await keys(memory)
        key, told = slow.held[0]
        assert key == entry_key(place.seq)
        # Only this create: what its opener does next does not matter.
        told.set_result(None)
        slow.held.clear()
        while entry_key(place.seq) not in await keys(memory):
            await asyncio.sleep(0)
        tail = Tail(memory)
        with pytest.raises(Overtaken, match="after the log had been collected") as raised:
            await words_from(tail, place)
        assert raised.value.checkpoint.position == log.journal.position
        assert raised.value.seq == place.seq
        assert raised.value.key == entry_key(place.seq)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)

    run(main())


def test_an_entry_that_is_deleted_while_it_is_fetched_leaves_a_gap() -> None:
    async def main() -> None:
        memory = MemoryStore()
        log = await open_log(memory)
        for number in range(20):
            await log.say(str(number))
        store = ObedientStore(memory)
        tail = Tail(store, prefetch=2)

        def fail(operation: str, key: str) -> None:
            if key == entry_key(20):
                memory._objects.pop(entry_key(21), None)

        store.fail = fail
        with pytest.raises(JournalGap, match=entry_key(21)):
            await words_from(tail, START)

    run(main())


def test_a_checkpoint_that_cannot_be_read_is_named() -> None:
    async def main() -> None:
        memory = MemoryStore()
        log = await open_log(memory)
        await log.say("a")
        await publish_checkpoint(memory, log.checkpoint())

        class Haunted(ObedientStore):
            async def get(self, key: str) -> bytes:
                if key.startswith("checkpoints/"):
                    await self.store.delete([key])
                    try:
                        return await super().get(key)
                    finally:
                        await publish_checkpoint(memory, log.checkpoint())
                return await super().get(key)

        with pytest.raises(CorruptStore, match="cannot be read") as raised:
            await Tail(Haunted(memory)).beyond(0)
        assert raised.value.key.startswith("checkpoints/")
        found = await Tail(memory).beyond(0)
        assert found is not None
        assert await Tail(memory).beyond(found.position.seq) is None

    run(main())


def test_being_overtaken_survives_pickling() -> None:
    async def main() -> None:
        log = await open_log(MemoryStore())
        error = Overtaken("what", 7, log.checkpoint())
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), copy.seq, copy.checkpoint) == ("what", 7, log.checkpoint())

    run(main())
