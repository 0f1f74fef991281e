from __future__ import annotations

import asyncio
import gc
import itertools
import logging
from typing import Any

import pytest

from taquba.errors import (
    BucketNotFound,
    Closed,
    CommitUnknown,
    CorruptStore,
    Fenced,
    InvalidArgument,
    ObjectExists,
    StoreAccessDenied,
    StoreUnavailable,
    TaqubaError,
)
from taquba.journal import JournalConfig, Kind, replay
from taquba.journal._position import entry_key
from taquba.objectstore import MemoryStore
from tests.journal.harness import CLOCK, ObedientStore, keys, open_log, read_words, rounds, run


def unavailable() -> None:
    raise StoreUnavailable("no answer")


def denied() -> None:
    raise StoreAccessDenied("no")


def test_what_was_durable_is_there_for_the_next_owner() -> None:
    async def main() -> None:
        store = MemoryStore()
        log = await open_log(store, metadata=b"one")
        await log.say("a", "b")
        assert await read_words(store) == ["a", "b"]
        await log.journal.close()
        second = await open_log(store, metadata=b"two")
        assert second.machine.metadata == [b"one", b""]
        assert second.machine.words == ["a", "b"]
        assert second.journal.epoch == 3
        await second.journal.close()

    run(main())


def test_everything_of_one_round_shares_an_entry() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store)

        async def speak(word: str) -> None:
            await log.say(word)

        await asyncio.gather(*(speak(str(number)) for number in range(50)))
        assert log.journal.statistics().entries == 1
        assert len(log.machine.words) == 50
        assert log.journal.last_ticket == log.journal.acknowledged_ticket == 1

    run(main())


def test_what_was_put_off_to_the_next_round_joins_the_batch_that_lingers() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store)
        for lingers in (False, True):
            before = log.journal.statistics().entries
            first = log.say("now")
            asyncio.get_running_loop().call_soon(log.say, "then")
            if lingers:
                log.journal.linger()
                log.journal.linger()
            await first
            await rounds()
            assert log.journal.statistics().entries - before == (1 if lingers else 2)
        await log.journal.close()

    run(main())


def test_a_batch_lingers_for_one_round_alone() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store)
        log.journal.linger()  # nothing is due
        said = log.say("now")
        for _ in range(4):
            log.journal.linger()
            await rounds(1)
        assert log.journal.statistics().puts == 1
        await said
        await log.journal.close()

    run(main())


def test_a_lone_commit_takes_one_put_and_no_waiting() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore(), latency=0.020)
        log = await open_log(store, commit_interval=5)
        began = CLOCK.monotonic()
        for number in range(10):
            await log.say(str(number))
        assert CLOCK.monotonic() - began == pytest.approx(0.2)
        assert log.journal.statistics().puts == 10

    run(main())


def test_while_entries_are_in_flight_seals_keep_the_interval() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore(), latency=1.0)
        log = await open_log(store, commit_interval=0.1, window=100)
        store.creates.clear()
        end = CLOCK.monotonic() + 0.95
        waits = []
        while CLOCK.monotonic() < end:
            waits.append(log.say("x"))
            await asyncio.sleep(0.01)
        assert 9 <= len(store.creates) <= 10
        await asyncio.gather(*waits)
        assert log.journal.statistics().entries <= 11

    run(main())


def test_never_more_than_the_window_is_in_flight() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store, window=3, commit_interval=0)
        store.holding = True
        waits = []
        for number in range(10):
            waits.append(log.say(str(number)))
            await asyncio.sleep(0.01)
        assert len(store.held) == 3
        statistics = log.journal.statistics()
        assert (statistics.in_flight, statistics.queued) == (3, 0)
        # Seals that are asked for wait for room in the window.
        position = log.journal.seal_now()
        assert position.seq == 3 + 4
        assert len(store.held) == 3
        assert log.journal.statistics().queued == 1
        store.release(1)
        await rounds()
        assert len(store.held) == 2  # the first is missing, so the window does not move
        store.release(0)
        await rounds()
        assert len(store.held) == 2
        assert log.journal.statistics().in_flight == 2
        store.release_all()
        await asyncio.gather(*waits)

    run(main())


def test_acknowledgements_keep_the_order() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store, commit_interval=0)
        store.holding = True
        heard: list[int] = []
        for number in range(4):
            log.say(str(number)).add_done_callback(lambda _, number=number: heard.append(number))
            await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(log.journal.wait_stored(log.journal.position.seq - 2))
        for index in (3, 1, 1):
            store.release(index)
            await rounds()
            assert heard == []
            assert log.journal.acknowledged_ticket == 0
        assert not waiting.done()
        store.release(0)
        await rounds()
        assert heard == [0, 1, 2, 3]
        await waiting
        await log.journal.wait_stored(log.journal.position.seq)

    run(main())


def test_who_waits_for_a_place_waits_for_no_more() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store, commit_interval=0)
        store.holding = True
        for word in ("a", "b"):
            log.say(word)
            assert log.journal.last_ticket > log.journal.acknowledged_ticket
            await asyncio.sleep(0.01)
        before_last = log.journal.position.seq - 1
        waits = [asyncio.ensure_future(log.journal.wait_stored(before_last + n)) for n in (0, 1)]
        await rounds()
        store.release(0)
        await rounds()
        assert [wait.done() for wait in waits] == [True, False]
        store.release_all()
        await asyncio.gather(*waits)

    run(main())


def test_an_entry_lost_to_another_stops_the_ones_before_it_too() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store, commit_interval=0)
        tasks = len(asyncio.all_tasks())
        store.holding = True
        waits = [log.say("a")]
        await asyncio.sleep(0.01)
        waits.append(log.say("b"))
        await asyncio.sleep(0.01)
        stranger = await store.store.get(entry_key(0))
        await store.store.create(entry_key(log.journal.position.seq - 1), stranger)
        store.release(1)
        await rounds()
        assert len(asyncio.all_tasks()) < tasks
        store.release_all()
        await rounds()
        assert all(isinstance(wait.exception(), Fenced) for wait in waits)
        assert log.journal.acknowledged_ticket == 0
        await log.journal.close()

    run(main())


def test_an_idle_journal_does_nothing() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store)
        await log.say("x")
        store.calls.clear()
        loop: Any = asyncio.get_running_loop()
        before = loop._rounds
        await asyncio.sleep(3600)
        assert store.calls == []
        assert loop._rounds - before < 5

    run(main())


def test_a_batch_without_a_change_costs_nothing_and_waits_for_those_before() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store, commit_interval=0)
        puts = len(store.creates)
        await log.say()
        assert len(store.creates) == puts
        store.holding = True
        first = log.say("x")
        await rounds()
        empty = log.say()
        await asyncio.sleep(0.01)
        assert not empty.done()
        assert log.machine.seals[-1] == log.journal.position.seq
        store.release_all()
        await empty
        assert first.done()
        assert log.journal.last_ticket == log.journal.acknowledged_ticket == 3

    run(main())


def test_cancelling_one_waiter_leaves_the_others_alone() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store)
        store.holding = True
        first = log.say("x")
        second = log.journal.durable(log.journal.last_ticket)
        third = asyncio.ensure_future(asyncio.wait_for(log.say("y"), 1.0))
        first.cancel()
        await asyncio.sleep(2.0)
        assert isinstance(third.exception(), TimeoutError)
        store.release_all()
        await second
        assert await read_words(store.store) == ["x", "y"]

    run(main())


def test_a_ticket_that_was_never_given_out_is_refused() -> None:
    async def main() -> None:
        log = await open_log(MemoryStore())
        await log.journal.durable(0)
        with pytest.raises(InvalidArgument, match="never given out"):
            log.journal.durable(1)

    run(main())


def test_futures_that_nobody_awaits_report_nothing() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store)
        store.holding = True
        for _ in range(3):
            log.say("x")
            await rounds()
        await read_words(store.store)
        store.release_all()
        await rounds(50)
        assert isinstance(log.journal.failure, Fenced)
        log.journal.durable(log.journal.last_ticket)
        await log.journal.close()
        gc.collect()
        await rounds()

    run(main())


def test_a_fenced_writer_fails_everybody_and_acknowledges_nothing() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store, commit_interval=0)
        await log.say("before")
        store.holding = True
        waits = []
        for word in ("a", "b", "c"):
            waits.append(log.say(word))
            await asyncio.sleep(0.01)
        stored = asyncio.ensure_future(log.journal.wait_stored(log.journal.position.seq))
        assert await read_words(store.store) == ["before"]
        store.release(2)
        store.release(1)
        await rounds()
        assert not any(wait.done() for wait in waits)
        unsealed = log.say("d")
        store.release(0)
        await rounds()
        errors = [wait.exception() for wait in (*waits, unsealed)]
        assert all(isinstance(error, Fenced) for error in errors)
        assert len({id(error) for error in errors}) == 4
        assert "epoch 2" in str(errors[0])
        assert entry_key(17) in str(errors[0])
        assert log.machine.failure is log.journal.failure
        with pytest.raises(Fenced):
            await stored
        for refused in (
            log.journal.append,
            log.journal.seal_now,
        ):
            with pytest.raises(Fenced):
                refused()
        with pytest.raises(Fenced):
            await log.journal.admit()
        with pytest.raises(Fenced):
            await log.journal.durable(log.journal.last_ticket)
        with pytest.raises(Fenced):
            await log.journal.wait_stored(log.journal.position.seq)
        await log.journal.durable(1)
        assert log.journal.last_ticket > log.journal.acknowledged_ticket == 1
        await log.journal.close()
        assert await read_words(store.store) == ["before"]

    run(main())


def test_an_answer_that_was_lost_is_no_lost_race() -> None:
    """Even on a store that does not settle it by itself."""

    async def main() -> None:
        memory = MemoryStore()
        store = ObedientStore(memory)
        log = await open_log(store)
        store.holding = True
        wait = log.say("x")
        await rounds()
        key, told = store.held.pop()
        # The request lands, its answer is lost, and the repetition hears 'exists'.
        await memory.create(key, log.journal._pipeline._flights[0].data)
        told.set_result(unavailable)
        await asyncio.sleep(1.0)
        store.release()
        await wait
        assert await read_words(memory) == ["x"]

    run(main())


def test_an_answer_lost_by_the_epoch_entry_is_no_lost_race() -> None:
    async def main() -> None:
        class Resending(MemoryStore):
            async def create(self, key: str, data: bytes) -> None:
                await super().create(key, data)
                raise ObjectExists("the client sent it twice", key=key)

        log = await open_log(Resending())
        assert log.journal.epoch == 1
        await log.say("x")

    run(main())


@pytest.mark.parametrize("failure", [unavailable, denied, lambda: 1 / 0])
def test_a_failing_store_loses_nothing_and_is_reported_once(
    failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taquba.journal")

    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store, window=4, commit_interval=0)
        broken = True

        def fail(operation: str, key: str) -> None:
            if broken:
                failure()

        store.fail = fail
        waits = []
        for number in range(6):
            waits.append(log.say(str(number)))
            await asyncio.sleep(0.01)
        await asyncio.sleep(3600)
        assert not any(wait.done() for wait in waits)
        assert log.journal.failure is None
        tries = log.journal.statistics().failed_puts
        assert 4 * 3600 / 5 < tries < 4 * 3600 / 1.5  # full jitter: 2.5 s on average
        broken = False
        await asyncio.gather(*waits)
        assert await read_words(store.store) == [str(number) for number in range(6)]

    run(main())
    messages = [record.getMessage() for record in caplog.records if "stored" in record.msg]
    assert len(messages) == 2
    assert "trying again until it is" in messages[0]
    assert "stored again, after 36" in messages[1]


def test_repetitions_back_off_at_random() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store, first_retry_delay=1, max_retry_delay=8)
        times: list[float] = []

        def fail(operation: str, key: str) -> None:
            times.append(CLOCK.monotonic())
            unavailable()

        store.fail = fail
        log.say("x")
        await asyncio.sleep(400)
        gaps = [b - a for a, b in itertools.pairwise(times)]
        for gap, bound in zip(gaps, (1, 2, 4, 8, 8, 8), strict=False):
            assert 0 <= gap <= bound
        assert max(gaps) > 5
        assert len(set(gaps)) == len(gaps)

    run(main())


def test_bytes_on_the_way_are_bounded() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store, max_unacknowledged_bytes=1000, commit_interval=0)
        assert log.journal.admitting
        store.holding = True
        log.say("x" * 1000)
        await rounds()
        assert not log.journal.admitting
        admissions = [asyncio.ensure_future(log.journal.admit()) for _ in range(3)]
        await rounds()
        admissions[0].cancel()
        await rounds()
        assert not admissions[1].done()
        store.release_all()
        await asyncio.gather(*admissions[1:])
        assert log.journal.admitting
        await log.journal.admit()

    run(main())


def test_appends_in_one_batch_are_bounded() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store, max_batch=5, window=1)
        store.holding = True
        log.say("first")
        await rounds()
        for number in range(5):
            assert log.journal.admitting
            log.say(str(number))
        assert not log.journal.admitting
        admission = asyncio.ensure_future(log.journal.admit())
        await rounds()
        assert not admission.done()
        store.release()
        await rounds()
        await admission

    run(main())


def test_a_full_batch_is_sealed_before_its_time() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store, max_batch=5, commit_interval=1000)
        store.holding = True
        log.say("first")
        await rounds()
        for _ in range(5):
            log.say("x")
        await rounds()
        assert len(store.held) == 2

    run(main())


def test_close_seals_and_waits() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore(), latency=0.5)
        log = await open_log(store, window=1, commit_interval=1000)
        first = log.say("a")
        await asyncio.sleep(0.1)
        second = log.say("b")
        await log.journal.close(timeout=10)
        assert first.done()
        assert second.done()
        assert log.journal.failure is None
        assert log.machine.failure is None
        assert await read_words(store.store) == ["a", "b"]
        with pytest.raises(Closed):
            log.journal.append()
        with pytest.raises(Closed):
            await log.journal.admit()
        with pytest.raises(Closed):
            await log.journal.durable(3)
        await log.journal.durable(2)
        await log.journal.close()
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_close_gives_up_when_its_time_is_up() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store)
        store.holding = True
        wait = log.say("a")
        began = CLOCK.monotonic()
        others = asyncio.ensure_future(log.journal.close())
        with pytest.raises(CommitUnknown):
            await log.journal.close(timeout=2)
        assert CLOCK.monotonic() - began == pytest.approx(2)
        with pytest.raises(CommitUnknown):
            await wait
        with pytest.raises(CommitUnknown):
            await others
        assert isinstance(log.machine.failure, CommitUnknown)
        await log.journal.close()
        await rounds()
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_a_cancelled_close_still_ends_everything() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store)
        store.holding = True
        wait = log.say("a")
        closing = asyncio.ensure_future(log.journal.close())
        await rounds()
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        assert isinstance(wait.exception(), CommitUnknown)
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_close_tells_when_another_took_over_meanwhile() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store)
        store.holding = True
        log.say("a")
        await rounds()
        await read_words(store.store)
        closing = asyncio.ensure_future(log.journal.close())
        await rounds()
        store.release_all()
        with pytest.raises(Fenced):
            await closing
        await log.journal.close()

    run(main())


def test_close_wakes_who_waits_for_admission() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        log = await open_log(store, max_unacknowledged_bytes=1)
        store.holding = True
        log.say("a")
        await rounds()
        admission = asyncio.ensure_future(log.journal.admit())
        later = asyncio.ensure_future(log.journal.wait_stored(10**6))
        await rounds()
        closing = asyncio.ensure_future(log.journal.close())
        await rounds()
        assert isinstance(admission.exception(), Closed)
        store.release_all()
        await closing
        assert isinstance(later.exception(), Closed)

    run(main())


@pytest.mark.parametrize("method", ["seal", "sealed"])
def test_a_state_machine_that_fails_stops_the_journal(method: str) -> None:
    async def main() -> None:
        log = await open_log(MemoryStore())

        def explode(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        setattr(log.machine, method, explode)
        wait = log.say("x")
        with pytest.raises(Closed, match="a bug") as raised:
            await wait
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        assert log.journal.last_ticket > log.journal.acknowledged_ticket
        assert isinstance(log.journal.failure, TaqubaError)
        assert isinstance(log.journal.failure.__cause__, ZeroDivisionError)
        with pytest.raises(Closed):
            log.journal.seal_now()
        await log.journal.close()

    run(main())


def test_changes_made_while_sealing_belong_where_they_are_made() -> None:
    async def main() -> None:
        store = MemoryStore()
        log = await open_log(store)
        seal, machine, journal = log.machine.seal, log.machine, log.journal
        tickets: list[int] = []

        def seal_more(seq: int) -> bytes | None:
            if len(tickets) == 0:
                machine.fresh.append("during")
                tickets.append(journal.append())
            return seal(seq)

        def sealed(position: object) -> None:
            if len(tickets) == 1:
                machine.fresh.append("after")
                tickets.append(journal.append())

        machine.seal = seal_more  # type: ignore[method-assign]
        machine.sealed = sealed  # type: ignore[method-assign]
        await log.say("x")
        assert tickets == [1, 2]
        await journal.durable(2)
        await journal.close()
        bodies = [e.body async for e, _ in replay(store, _start()) if e.kind is Kind.ORDINARY]
        assert bodies == [b"x during", b"after"]

    run(main())


def _start() -> Any:
    from taquba.journal import START

    return START


def test_seal_now_gives_the_place_after_it() -> None:
    async def main() -> None:
        log = await open_log(MemoryStore(), window=4)
        assert log.journal.seal_now() == log.journal.position
        assert log.machine.seals == []
        wait = log.say("x")
        position = log.journal.seal_now()
        assert position.seq == 5
        assert log.machine.positions == [position]
        await wait
        await log.journal.wait_stored(5)
        assert log.machine.seals == [4]  # the seal that was scheduled found nothing

    run(main())


@pytest.mark.parametrize("error", [StoreAccessDenied("no"), BucketNotFound("no")])
def test_open_raises_what_cannot_get_better(error: Exception) -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())

        def fail(operation: str, key: str) -> None:
            if operation == "create":
                raise error

        store.fail = fail
        with pytest.raises(type(error)):
            await open_log(store)
        assert len(store.creates) == 1

    run(main())


def test_open_gives_up_on_a_store_that_does_not_answer() -> None:
    async def main() -> None:
        store = ObedientStore(MemoryStore())
        store.fail = lambda operation, key: unavailable() if operation == "create" else None
        with pytest.raises(StoreUnavailable, match="given up"):
            await open_log(store, open_attempts=3)
        assert len(store.creates) == 3
        store.fail = lambda operation, key: None
        assert (await open_log(store)).journal.epoch == 1

    run(main())


def test_somebody_elses_garbage_at_our_place_is_damage_not_a_takeover() -> None:
    async def main() -> None:
        store = MemoryStore()
        log = await open_log(store)
        await store.create(entry_key(log.journal.position.seq), b"garbage")
        with pytest.raises(CorruptStore, match="damaged"):
            await log.say("x")

    run(main())


def test_the_window_is_the_stores() -> None:
    async def main() -> None:
        store = MemoryStore()
        first = await open_log(store, window=3)
        await first.journal.close()
        second = await open_log(store, window=50)
        assert second.journal.position.window == 3
        assert [mark.resume_at for mark in second.journal.position.epochs] == [3, 6]

    run(main())


@pytest.mark.parametrize(
    "setting",
    [
        {"window": 0},
        {"window": 1025},
        {"commit_interval": -1},
        {"commit_interval": float("nan")},
        {"max_retry_delay": float("inf")},
        {"max_unacknowledged_bytes": 0},
        {"max_batch": 0},
        {"open_attempts": 0},
        {"prefetch": 0},
    ],
)
def test_settings_are_checked(setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(setting))):
        JournalConfig(**setting)


def test_nothing_but_entries_is_stored() -> None:
    async def main() -> None:
        store = MemoryStore()
        log = await open_log(store, window=4)
        await log.say("x")
        await log.journal.close()
        assert await keys(store) == [entry_key(0), entry_key(4)]

    run(main())
