"""What must hold of journal, database and queue together. Each predicate gives a complaint.

An `Op` is one commit that a simulated user asked for. It leaves a marker, a key of its own in
the key-value store, in the same transaction as whatever else it does; so the log tells which
commits are in it, where, and whether each is there as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from taquba.errors import TaqubaError
from taquba.journal import EpochMark, Kind, Position
from taquba.journal._entry import decode_entry
from taquba.queue import QueueStats
from tests.simulation.shadow import (
    COLUMNS,
    Change,
    History,
    Landed,
    Published,
    Row,
    Step,
    Table,
    Tables,
    difference,
)

_JOBS, _QUEUES = COLUMNS["jobs"], COLUMNS["queues"]
_ID, _QUEUE, _STATE = _JOBS["id"], _JOBS["queue"], _JOBS["state"]
_ATTEMPTS, _PAYLOAD, _ERROR = _JOBS["attempts"], _JOBS["payload"], _JOBS["last_error"]
_MAX, _RUN_AT, _CLAIMED_AT = _JOBS["max_attempts"], _JOBS["run_at"], _JOBS["claimed_at"]
PENDING, SCHEDULED, CLAIMED, DONE, DEAD = range(5)
MARK = b"op/"


@dataclass(eq=False)
class Op:
    """One commit that a user asked for.

    Attributes:
        number: Unique in its world.
        owner: Name of the process.
        epoch: Of that process.
        kind: What it does: put, enqueue, ack, nack, bury, cancel or requeue.
        job: Id of the job that it is about, if it is about one.
        attempt: Of that job, for settlements.
        payloads: Of the jobs that it enqueues.
        order: Its place among the commits of its process.
        acknowledged_at: When its caller was told that it is done; None if it never was.
        refused: Its caller was told that nothing was applied.
        rolled_back: Its transaction was left by an exception.
        conditional: It may turn out that there is nothing to commit.
    """

    number: int
    owner: str
    epoch: int
    kind: str
    job: str = ""
    attempt: int = 0
    payloads: tuple[bytes, ...] = ()
    order: int = -1
    acknowledged_at: float | None = None
    refused: bool = False
    rolled_back: bool = False
    conditional: bool = False

    @property
    def marker(self) -> bytes:
        return MARK + b"%06d" % self.number


class Seen(NamedTuple):
    """What somebody who reads the store saw at one moment."""

    reader: str
    at: float
    seq: int
    content: Tables


def number_of(key: bytes) -> int:
    """Number of the commit whose marker this key is; -1 for other keys."""
    return int(key[len(MARK) :]) if key.startswith(MARK) else -1


def markers(step: Step) -> list[int]:
    """Numbers of the commits that this entry holds, ascending."""
    numbers = (number_of(change.key[0]) for change in step.changes if change.table == "kv")
    return sorted(number for number in numbers if number >= 0)


# -- commits -------------------------------------------------------------------------------------


def lost(ops: Iterable[Op], log: Mapping[int, Step]) -> str:
    """Whatever was acknowledged is in the log."""
    missing = [op.number for op in ops if op.acknowledged_at is not None and op.number not in log]
    return f"acknowledged, and not in the log: {missing}" if missing else ""


def lost_at_open(known: Iterable[int], present: Iterable[int]) -> str:
    """Whoever opens the store finds everything that was acknowledged before it began."""
    missing = sorted(set(known) - set(present))
    return f"acknowledged before the opening, and not there after it: {missing}" if missing else ""


def early(ops: Iterable[Op], log: Mapping[int, Step], steps: Sequence[Step]) -> str:
    """When a commit is acknowledged its entry, and every one before it, is stored."""
    stored_at: dict[int, float] = {}
    latest = 0.0
    for step in steps:
        latest = stored_at[step.seq] = max(latest, step.landed_at)
    for op in ops:
        step = log.get(op.number)
        if step is None or op.acknowledged_at is None:
            continue
        if op.acknowledged_at < stored_at[step.seq]:
            return f"commit {op.number} was acknowledged at {op.acknowledged_at:.4f}, before " + (
                f"all entries up to {step.seq} were stored, at {stored_at[step.seq]:.4f}"
            )
    return ""


def read_early(reads: Iterable[tuple[int, float]], log: Mapping[int, Step]) -> str:
    """What a read reports is stored by then."""
    for number, at in reads:
        step = log.get(number)
        if step is None or step.landed_at > at:
            return f"commit {number} was read at {at:.4f}, and is not stored by then"
    return ""


def doubled(steps: Iterable[Step]) -> str:
    """No commit is in the log twice."""
    counts = Counter(number for step in steps for number in markers(step))
    twice = [number for number, count in counts.items() if count > 1]
    return f"more than once in the log: {twice}" if twice else ""


def invented(log: Iterable[int], ops: Mapping[int, Op]) -> str:
    """Only what was asked for, and neither refused nor rolled back, is in the log."""
    for number in log:
        op = ops.get(number)
        if op is None or op.refused or op.rolled_back:
            return f"in the log, and never committed: {number} ({op})"
    return ""


def reordered(steps: Iterable[Step], ops: Iterable[Op]) -> str:
    """Of each process the log holds the first so-and-so many commits, in their order."""
    by_owner: dict[str, list[Op]] = {}
    for op in ops:
        if op.order >= 0 and not op.refused and not op.rolled_back:
            by_owner.setdefault(op.owner, []).append(op)
    place = {number: index for index, step in enumerate(steps) for number in markers(step)}
    for owner, theirs in by_owner.items():
        theirs.sort(key=lambda op: op.order)
        latest, gone = -1, -1
        for op in theirs:
            index = place.get(op.number)
            if index is None:
                if not op.conditional or op.acknowledged_at is not None:
                    gone = op.number
            elif gone >= 0:
                return f"the log has commit {op.number} of {owner}, and not {gone} before it"
            elif index < latest:
                return f"the log has commit {op.number} of {owner} before an earlier one"
            else:
                latest = index
    return ""


def foreign(step: Step, ops: Mapping[int, Op]) -> str:
    """An entry holds only commits of the process that owned the store then."""
    for number in markers(step):
        op = ops.get(number)
        if op is not None and op.epoch != step.epoch:
            return f"entry {step.seq} of epoch {step.epoch} holds commit {number} of {op.epoch}"
    return ""


def fenced_without_rival(epoch: int, newest: int) -> str:
    """A process stops as fenced only when a newer epoch is in the store."""
    return "" if newest > epoch else f"epoch {epoch} was fenced, and there is no newer one"


def acknowledged_after_failure(op: Op, failed_at: float | None) -> str:
    """A process that was fenced acknowledges nothing any more."""
    if failed_at is None or op.acknowledged_at is None or op.acknowledged_at <= failed_at:
        return ""
    return f"commit {op.number} was acknowledged after {op.owner} stopped, at {failed_at:.4f}"


# -- atomicity and conservation ------------------------------------------------------------------


def torn(step: Step, ops: Mapping[int, Op]) -> str:
    """A commit is in one entry as a whole: the marker, what it enqueues, what it settles."""
    here = [ops[number] for number in markers(step) if number in ops]
    jobs = [change for change in step.changes if change.table == "jobs"]
    entered = {change.after[_PAYLOAD] for change in jobs if change.after and not change.before}
    touched = {row[_ID] for change in jobs for row in (change.before, change.after) if row}
    taken_at_once = {op.job for op in here if op.kind == "cancel"}
    for op in here:
        missing = [payload for payload in op.payloads if payload not in entered]
        if missing and not taken_at_once:
            return f"entry {step.seq} has commit {op.number} without its jobs {missing}"
        if op.kind in ("ack", "nack", "bury", "requeue") and op.job not in touched:
            return f"entry {step.seq} has commit {op.number} without its {op.kind} of {op.job}"
    pair = {change.key[0]: change.after for change in step.changes if change.table == "kv"}
    left, right = pair.get(b"pair/left"), pair.get(b"pair/right")
    if (left and left[1]) != (right and right[1]):
        return f"entry {step.seq} writes {left} and {right}, which belong together"
    return ""


def unfounded(step: Step, ops: Mapping[int, Op]) -> str:
    """A job comes, ends or goes only by a commit in the same entry, or by a rule of the queue."""
    here = [ops[number] for number in markers(step) if number in ops]
    enqueued = {payload for op in here for payload in op.payloads}
    about: dict[str, set[str]] = {}
    for op in here:
        about.setdefault(op.job, set()).add(op.kind)
    for change in step.changes:
        if change.table != "jobs":
            continue
        row = change.after or change.before
        assert row is not None
        kinds = about.get(row[_ID], set())
        complaint = _unfounded(change.before, change.after, kinds, enqueued)
        if complaint:
            return f"entry {step.seq}, job {row[_ID]}: {complaint}"
    return ""


def _unfounded(before: Row | None, after: Row | None, kinds: set[str], enqueued: set[bytes]) -> str:
    if before is None:
        assert after is not None
        if after[_PAYLOAD] not in enqueued:
            return f"it came without its commit ({after})"
    elif after is None:
        # A job may die, by a commit or a rule, and be removed, before anything is stored.
        died = before[_STATE] == CLAIMED and before[_ATTEMPTS] >= before[_MAX]
        reason = kinds & {"ack", "cancel", "nack", "bury"} or before[_STATE] in (DONE, DEAD)
        if not reason and not died:
            return f"it went from state {before[_STATE]} without a commit"
    elif after[_STATE] == DONE != before[_STATE] and "ack" not in kinds:
        return "it is done without a commit"
    elif after[_STATE] == DEAD != before[_STATE] and not kinds & {"nack", "bury"}:
        by_rule = after[_ERROR] in ("lease expired", "claim interrupted by process exit")
        if not by_rule or after[_ATTEMPTS] < after[_MAX]:
            return f"it died without a reason ({after[_ERROR]})"
    elif before[_STATE] == DEAD != after[_STATE] and "requeue" not in kinds:
        return f"it rose from the dead to state {after[_STATE]}"
    elif before[_STATE] == DONE != after[_STATE]:
        return f"it was done, and went to state {after[_STATE]}"
    return ""


def settled_by_another(step: Step, ops: Mapping[int, Op]) -> str:
    """A settlement meets its job as its claim left it: claimed, on the same attempt."""
    before = {
        change.before[_ID]: change.before
        for change in step.changes
        if change.table == "jobs" and change.before
    }
    for number in markers(step):
        op = ops.get(number)
        if op is None or op.kind not in ("ack", "nack", "bury") or op.job not in before:
            continue
        state, attempts = before[op.job][_STATE], before[op.job][_ATTEMPTS]
        if state != CLAIMED or attempts != op.attempt:
            return (
                f"commit {number} settled attempt {op.attempt} of job {op.job}, which was in state "
                f"{state}, on attempt {attempts}"
            )
    return ""


def misshapen(change: Change) -> str:
    """A job is in exactly one state, and its row has what belongs to it."""
    row = change.after
    if change.table != "jobs" or row is None:
        return ""
    state = row[_STATE]
    good = (
        state in (PENDING, SCHEDULED, CLAIMED, DONE, DEAD)
        and (row[_RUN_AT] is not None) == (state == SCHEDULED)
        and (row[_CLAIMED_AT] is not None or state != CLAIMED)
        and 0 <= row[_ATTEMPTS] <= row[_MAX]
    )
    return "" if good else f"job {row[_ID]} is misshapen: {row}"


def miscounted(step: Step, counts: Mapping[tuple[int, int], int], queues: Table) -> str:
    """The counters of each queue are what its jobs add up to.

    `counts` are the jobs by queue and state; of state done, all that were ever acknowledged.
    """
    names = ("pending", "scheduled", "claimed", "done", "dead")
    numbers = {queue for queue, _ in counts} | {key[0] for key in queues}
    for number in sorted(numbers):
        row = queues.get((number,))
        for state, name in enumerate(names):
            counted = counts.get((number, state), 0)
            said = 0 if row is None else row[_QUEUES[name]]
            if said != counted:
                return f"entry {step.seq}: queue {number} says {name} {said}, and has {counted}"
    return ""


# -- claims --------------------------------------------------------------------------------------


def claim_not_stored(
    claims: Iterable[tuple[str, int, float]], taken: Mapping[tuple[str, int], float]
) -> str:
    """A claim that was handed out is in the log by then.

    `claims` are job, attempt and time; `taken` says when each attempt's entry was stored.
    """
    for job, attempt, at in claims:
        stored = taken.get((job, attempt))
        if stored is None or stored > at:
            return f"attempt {attempt} of job {job} was handed out at {at:.4f}, stored at {stored}"
    return ""


def handed_out_twice(claims: Iterable[tuple[str, int]]) -> str:
    """No attempt of a job is handed out twice."""
    twice = [claim for claim, count in Counter(claims).items() if count > 1]
    return f"handed out more than once: {twice}" if twice else ""


def settled_after_its_end(op: Op, was_live: bool) -> str:
    """A claim whose lease expired settles nothing."""
    return "" if was_live else f"commit {op.number} settled {op.job}, whose claim had ended"


def claim_lost_early(held: float, lease: float, stopped: bool) -> str:
    """A claim is lost only when its lease has expired, or the queue has stopped."""
    if stopped or held >= lease - 1e-6:
        return ""
    return f"a claim was lost after {held:.3f} s of a lease of {lease} s"


# -- checkpoints and collection ------------------------------------------------------------------


def checkpoint_misplaced(checkpoint: Position, positions: Mapping[int, Position]) -> str:
    """A checkpoint's place is one that the log came through."""
    if positions.get(checkpoint.seq) == checkpoint:
        return ""
    return f"the checkpoint at {checkpoint.seq} is not on the log"


def checkpoint_early(published: Published, steps: Iterable[Step]) -> str:
    """When a checkpoint is visible every entry before it is stored."""
    seq = published.checkpoint.position.seq
    for step in steps:
        if step.seq < seq and step.landed_at > published.at:
            return f"checkpoint {seq} was visible before entry {step.seq} was stored"
    return ""


def checkpoint_differs(seq: int, found: Tables | TaqubaError, history: History) -> str:
    """A checkpoint has exactly the rows to which all entries before it add up."""
    if isinstance(found, TaqubaError):
        return f"checkpoint {seq}: {found!r}"
    expected = history.states.get(seq)
    if expected is None:
        return f"nothing is known of the place {seq}"
    problem = difference(found, expected)
    return f"checkpoint {seq}: {problem}" if problem else ""


def chunks_missing(missing: Sequence[str]) -> str:
    """Whatever the newest checkpoint refers to is there, at any time."""
    return f"the newest checkpoint is incomplete: {missing[0]}" if missing else ""


def fence_removed(deleted: Iterable[tuple[int, bytes]], epochs: Iterable[EpochMark]) -> str:
    """An epoch entry of the log is never deleted."""
    marks = {mark.seq: mark.epoch for mark in epochs}
    for seq, data in deleted:
        if seq in marks:
            entry = decode_entry(f"journal/{seq:020d}", data)
            if entry.kind is Kind.EPOCH and entry.epoch == marks[seq]:
                return f"the epoch entry {seq} was deleted"
    return ""


# -- followers and the end -----------------------------------------------------------------------


def not_a_prefix(seen: Seen, history: History, entries: Mapping[int, Landed]) -> str:
    """What a reader shows is the state at its place, all of which is stored."""
    expected = history.states.get(seen.seq)
    if expected is None or seen.seq not in history.positions:
        return f"{seen.reader} was at {seen.seq}, where the log never was"
    problem = difference(seen.content, expected)
    if problem:
        return f"{seen.reader} at {seen.seq}: {problem}"
    for step in history.steps:
        if step.seq < seen.seq and step.landed_at > seen.at:
            return f"{seen.reader} showed entry {step.seq} before it was stored"
    return ""


def not_shown(known: Iterable[int], shown: Iterable[int]) -> str:
    """A follower that has just looked shows everything that was acknowledged before."""
    missing = sorted(set(known) - set(shown))
    return f"acknowledged before the look, and not shown after it: {missing}" if missing else ""


def follower_miscounts(reader: str, stats: QueueStats, jobs: Mapping[int, int]) -> str:
    """The counters that a follower tells are those of the jobs that it shows."""
    for state, told in enumerate((stats.pending, stats.scheduled, stats.claimed)):
        if told != jobs.get(state, 0):
            return f"{reader} tells {stats}, and shows {dict(jobs)}"
    return "" if stats.dead == jobs.get(DEAD, 0) else f"{reader} tells {stats}, shows {dict(jobs)}"


def went_back(seen: Sequence[Seen]) -> str:
    """A reader's place never goes back."""
    places: dict[str, int] = {}
    for one in seen:
        if one.seq < places.get(one.reader, 0):
            return f"{one.reader} went from {places[one.reader]} back to {one.seq}"
        places[one.reader] = one.seq
    return ""


def verify_complains(name: str, findings: Sequence[object]) -> str:
    """`taquba verify` finds no damage where there is none, whoever writes meanwhile."""
    return f"{name} finds {'; '.join(map(str, findings[:3]))}" if findings else ""


def verify_is_lost(seq: int, settled: bool) -> str:
    """When nobody writes any more, verifying gets to the tail."""
    return "" if settled else f"verifying ended at {seq}, which is not the tail"
