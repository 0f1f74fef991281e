"""The simulation has teeth: each fault that is planted in the real code breaks some promise.

Each plant says which predicate, or which of some, is to notice it, and within how many seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from taquba.database import _checkpoints as checkpoints
from taquba.database import _chunks as chunks
from taquba.database._body import decode_body, encode_body
from taquba.database._collection import Collector
from taquba.database._database import Database, Transaction
from taquba.database._machine import Machine
from taquba.database._state import State
from taquba.errors import ObjectExists, StoreUnavailable
from taquba.journal import Entry, Journal, Position
from taquba.journal import _collect as collecting
from taquba.journal import _pipeline as writing
from taquba.journal import _replay as replaying
from taquba.journal import _tail as following
from taquba.journal import _takeover as opening
from taquba.journal._settle import create_or_read
from taquba.objectstore import ObjectStore
from taquba.queue import Claim, Effects, Queue, QueueTransaction
from taquba.queue._core import Core
from taquba.queue._leases import LeaseRegistry
from tests.simulation import shrink
from tests.simulation.stack import Plan, StackWorld, simulate

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("quiet")]

Patch = Callable[[Any, str, Any], None]


@dataclass(frozen=True)
class Fault:
    """A fault, and who notices it."""

    plant: Callable[[Patch], None]
    noticed_by: frozenset[str]
    within: int
    """Seeds."""
    changes: dict[str, Any]
    """What the worlds have more of than others, so that it shows soon."""


FAULTS: dict[str, Fault] = {}


def fault(
    *noticed_by: str, within: int, **changes: Any
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        FAULTS[plant.__name__] = Fault(plant, frozenset(noticed_by), within, changes)
        return plant

    return register


# -- the journal ---------------------------------------------------------------------------------


@fault(
    "lost",
    "lost_at_open",
    within=200,
    slots=4,
    lives=3,
    followers=0,
    audits=0,
    checkpoint_bytes=700,
    keep_checkpoints=1,
    retain_history=None,
    collection_rate=1000.0,
)
def no_second_look(patch: Patch) -> None:
    async def look_away(store: ObjectStore, trail: object) -> bool:
        return True

    patch(opening, "second_look", look_away)


@fault("fence_removed", within=20)
def epoch_entries_are_collected(patch: Patch) -> None:
    patch(collecting, "epochs_to_keep", lambda checkpoint: frozenset())


@fault("early", within=20)
def acknowledged_out_of_order(patch: Patch) -> None:
    def eager(self: writing.Pipeline, flight: writing.Flight) -> None:
        if not self._halted:
            self._flights.remove(flight)
            self._sent -= 1
            self.unacknowledged_bytes -= len(flight.data)
            self._acknowledge(flight.seq, flight.ticket)
            self._send()
            self._progress()

    patch(writing.Pipeline, "_on_stored", eager)


@fault("fenced_without_rival", within=20)
def a_lost_answer_is_a_failure(patch: Patch) -> None:
    async def give_up(store: ObjectStore, key: str, data: bytes) -> bytes | None:
        try:
            return await create_or_read(store, key, data)
        except StoreUnavailable:
            return data

    patch(writing, "create_or_read", give_up)


@fault("fenced_without_rival", within=30)
def what_exists_is_another_s(patch: Patch) -> None:
    async def believe(store: ObjectStore, key: str, data: bytes) -> bytes | None:
        try:
            await store.create(key, data)
        except ObjectExists:
            return await store.get(key)
        return None

    patch(writing, "create_or_read", believe)


@fault("lost", "lost_at_open", within=30)
def a_lost_answer_is_a_success(patch: Patch) -> None:
    async def hope(store: ObjectStore, key: str, data: bytes) -> bytes | None:
        try:
            return await create_or_read(store, key, data)
        except StoreUnavailable:
            return None

    patch(writing, "create_or_read", hope)


@fault("lost", "lost_at_open", within=30)
def a_fence_is_overlooked(patch: Patch) -> None:
    async def overlook(store: ObjectStore, key: str, data: bytes) -> bytes | None:
        await create_or_read(store, key, data)
        return None

    patch(writing, "create_or_read", overlook)


@fault("lost", within=60)
def a_fenced_writer_acknowledges(patch: Patch) -> None:
    def console(self: Journal, error: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in [future for futures in waiting.values() for future in futures]:
            if not future.done():
                future.set_result(None)

    patch(Journal, "_end_waiters", console)


@fault("not_a_prefix", "follower_failed", "cannot_open", "lost_at_open", within=100, followers=2)
def the_skipped_window_is_read(patch: Patch) -> None:
    whole = replaying.advance

    def blind(position: Position, entry: Entry) -> Position:
        after = whole(position, entry)
        return replace(after, seq=position.seq + 1)

    patch(replaying, "advance", blind)
    patch(following, "advance", blind)


# -- the database --------------------------------------------------------------------------------


@fault("lost", within=10)
def a_patchset_is_dropped(patch: Patch) -> None:
    whole = State.seal

    def leaky(self: State) -> bytes | None:
        body = whole(self)
        self.sealed = getattr(self, "sealed", 0) + 1  # type: ignore[attr-defined]
        return None if self.sealed == 5 else body  # type: ignore[attr-defined]

    patch(State, "seal", leaky)


@fault("log_broken", within=10)
def a_patchset_is_stored_twice(patch: Patch) -> None:
    whole = State.seal

    def stutter(self: State) -> bytes | None:
        body = whole(self)
        if body is None:
            return None
        statements, patchset = decode_body("it", body)
        before = getattr(self, "before", b"")
        self.before = patchset  # type: ignore[attr-defined]
        return encode_body(statements, before + patchset)

    patch(State, "seal", stutter)


@fault("cannot_open", "cannot_open_at_the_end", within=10)
def an_entry_is_applied_twice(patch: Patch) -> None:
    whole = Machine.apply

    def twice(self: Machine, entry: Entry) -> None:
        whole(self, entry)
        whole(self, entry)

    patch(Machine, "apply", twice)


@fault("lost_at_open", within=20)
def an_entry_is_not_applied(patch: Patch) -> None:
    whole = Machine.apply

    def forgetful(self: Machine, entry: Entry) -> None:
        if b"kv" not in entry.body or entry.seq % 5:
            whole(self, entry)

    patch(Machine, "apply", forgetful)


@fault("checkpoint_early", within=20)
def checkpoints_do_not_wait(patch: Patch) -> None:
    async def at_once(self: Journal, seq: int) -> None:
        pass

    patch(Journal, "wait_stored", at_once)


@fault("checkpoint_differs", within=60, checkpoint_bytes=700, users=3)
def checkpoints_say_a_wrong_place(patch: Patch) -> None:
    whole = checkpoints.Checkpointer.clean

    def late(self: checkpoints.Checkpointer, position: Position) -> None:
        whole(self, getattr(self, "before", position))
        self.before = position  # type: ignore[attr-defined]

    patch(checkpoints.Checkpointer, "clean", late)


@fault(
    "chunks_missing",
    within=150,
    zombies=0.6,
    freezes=0.6,
    slots=3,
    checkpoint_bytes=700,
    keep_checkpoints=1,
    retain_history=None,
    collection_rate=1000.0,
)
def chunks_are_shared_between_epochs(patch: Patch) -> None:
    whole = chunks.chunk_key
    patch(chunks, "chunk_key", lambda epoch, digest: whole(1, digest))


@fault(
    "chunks_missing",
    within=60,
    users=3,
    checkpoint_bytes=700,
    keep_checkpoints=1,
    retain_history=None,
    collection_rate=1000.0,
)
def a_referenced_chunk_is_collected(patch: Patch) -> None:
    whole = Collector.will_publish

    def forgetful(self: Collector, seq: int, contents: Any) -> None:
        needed = set(sorted(contents.chunk_keys())[1:])
        whole(self, seq, SimpleNamespace(chunk_keys=lambda: needed))  # type: ignore[arg-type]

    patch(Collector, "will_publish", forgetful)


@fault("read_early", within=60, users=4, budget=25)
def reads_do_not_wait(patch: Patch) -> None:
    async def at_once(self: Database) -> None:
        pass

    patch(Database, "barrier", at_once)


@fault("early", "lost", within=10)
def commits_do_not_wait(patch: Patch) -> None:
    async def at_once(self: Transaction) -> None:
        pass

    patch(Transaction, "durable", at_once)


@fault("invented", within=10)
def nothing_is_rolled_back(patch: Patch) -> None:
    whole = Transaction.__exit__

    def commit(self: Transaction, kind: Any, error: Any, trace: Any) -> None:
        whole(self, None, None, None)

    patch(Transaction, "__exit__", commit)


# -- the queue -----------------------------------------------------------------------------------


@fault("miscounted", within=10)
def counters_are_not_written(patch: Patch) -> None:
    def forget(self: Core) -> None:
        for lane in self._dirty:
            lane.dirty = False
        self._dirty.clear()

    patch(Core, "_write_counters", forget)


@fault("unfounded", within=10)
def effects_come_in_another_commit(patch: Patch) -> None:
    whole = Queue.ack

    async def apart(self: Queue, claim: Claim, effects: Effects | None = None) -> Any:
        settled = await whole(self, claim)
        with self.transaction() as tx:
            tx.apply(effects)
        await tx.durable()
        return settled

    patch(Queue, "ack", apart)


@fault("torn", within=10)
def effects_are_left_out(patch: Patch) -> None:
    whole = QueueTransaction.apply

    def only_keys(self: QueueTransaction, effects: Effects | None) -> Any:
        if effects is not None:
            effects.jobs.clear()
        return whole(self, effects)

    patch(QueueTransaction, "apply", only_keys)


@fault("settled_by_another", "settled_after_its_end", within=20)
def an_expired_lease_settles(patch: Patch) -> None:
    def trust(self: QueueTransaction, claim: Claim) -> Any:
        self._ended[claim._lease] = None
        return self._core.lanes_by_number[claim._lease.queue_number]

    patch(QueueTransaction, "_settle", trust)


@fault("claim_lost_early", within=40)
def leases_expire_early(patch: Patch) -> None:
    def impatient(self: LeaseRegistry, now: float) -> list[Any]:
        return [lease for lease in self._leases.values() if lease.expires_at <= now + 3.0]

    patch(LeaseRegistry, "due", impatient)


@fault("handed_out_twice", within=10)
def claims_do_not_count(patch: Patch) -> None:
    text = "UPDATE jobs SET state = 2, attempts = ?1 - 1, claimed_at = ?2 WHERE seq = ?3"
    patch("taquba.queue._transaction._claiming", "_CLAIM", text)


# -- the proof -----------------------------------------------------------------------------------


def planned(seed: int, changes: dict[str, Any]) -> StackWorld:
    return simulate(seed, replace(Plan.of(seed), **changes))


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]

    def patch(owner: Any, attribute: str, value: Any) -> None:
        if isinstance(owner, str):
            monkeypatch.setattr(f"{owner}.{attribute}", value)
        else:
            monkeypatch.setattr(owner, attribute, value)

    fault.plant(patch)
    others: set[str] = set()
    for seed in range(fault.within):
        broken = {shrink.promise(x) for x in planned(seed, fault.changes).violations}
        if broken & fault.noticed_by:
            return
        others |= broken
    pytest.fail(f"not noticed in {fault.within} worlds; but these were broken: {sorted(others)}")
