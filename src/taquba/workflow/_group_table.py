"""The records of groups: statements on the tables `groups` and `members`.

What a group knows changes in the transactions that change its members' runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from taquba._msgpack import pack, unpack
from taquba.errors import DuplicateMemberKey, GroupMismatch, GroupNotFound, GroupStopped
from taquba.workflow._group_rows import (
    GROUP_COLUMNS,
    Group,
    GroupOptions,
    Membership,
    NewMember,
    StoredMember,
    find_group,
)
from taquba.workflow._headers import HEADER_GROUP
from taquba.workflow._records import TerminalStatus
from taquba.workflow._run import RUN_COLUMNS, Run
from taquba.workflow._signal import new_signal

if TYPE_CHECKING:
    from taquba.queue import Queue, QueueTransaction
    from taquba.workflow._signals import Signals

__all__ = ["GroupTable"]

_COUNTERS = {
    TerminalStatus.SUCCEEDED: "succeeded",
    TerminalStatus.FAILED: "failed",
    TerminalStatus.CANCELLED: "cancelled",
}
_STORED = {1: "succeeded", 2: "failed", 3: "cancelled"}
_ENDED = {
    counter: f"UPDATE groups SET ends = ends + 1, {counter} = {counter} + 1 WHERE number = ?"
    f" RETURNING {GROUP_COLUMNS}"
    for counter in _COUNTERS.values()
}
_REPLACED = {
    counter: f"UPDATE groups SET {counter} = {counter} - 1, finished_at = NULL,"
    f" forgiven = forgiven - ({int(counter == 'failed')} AND forgiven_until >= ?)"
    " WHERE number = ?"
    for counter in _COUNTERS.values()
}
_RUN_COLUMNS = ", ".join(f"runs.{column.strip()}" for column in RUN_COLUMNS.split(","))
_POSITIONS = 2000
"""Members that are looked through at once."""


@final
class GroupTable:
    """The groups of one queue name."""

    def __init__(
        self,
        queue: Queue,
        name: str,
        signals: Signals,
        take_number: Callable[[], int],
        begin_upkeep: Callable[[], object],
    ) -> None:
        self._queue = queue
        self.name = name
        self._signals = signals
        self.any = False
        """Whether there may be any; as long as there are none, ends of runs cost nothing."""
        self.stopped: set[str] = set()
        """Groups of which no further member begins."""
        self.to_stop = asyncio.Event()
        """Some of them have members that are to be cancelled."""
        self.to_forget = asyncio.Event()
        """Some of them may be to be removed."""
        self._take_number = take_number
        self._begin_upkeep = begin_upkeep
        self._submitting: dict[str, int] = {}
        self._temporary: set[str] = set()
        """Temporary groups of this process."""
        self._readers: dict[int | str, dict[asyncio.Future[None], None]] = {}

    def enter(self) -> None:
        """Find what is there: a runtime begins to use this table."""
        rows = self._queue.peek(
            "SELECT group_id, stopped FROM groups WHERE queue = ?", (self.name,)
        )
        self.stopped |= {group_id for group_id, stopped in rows if group_id and stopped}
        if self.stopped:
            self.to_stop.set()
        if rows:
            self._some()
            self._abandon_all()

    def _abandon_all(self) -> None:
        """Of temporary groups, those are of no use any more that another process has made."""
        rows = self._queue.peek(
            "SELECT group_id FROM groups"
            " WHERE queue = ? AND group_id IS NOT NULL AND temporary AND retention > 0",
            (self.name,),
        )
        left = [group_id for (group_id,) in rows if group_id not in self._temporary]
        if left:
            with self._queue.transaction() as tx:
                for group_id in left:
                    self.abandon(tx, self.get(group_id))

    def _some(self) -> None:
        if not self.any:
            self.any = True
            self._begin_upkeep()

    # -- looking ----------------------------------------------------------------------------

    def find(self, group_id: str) -> Group | None:
        """The group of this id."""
        return find_group(self._queue.peek, self.name, group_id)

    def get(self, group_id: str) -> Group:
        """The group of this id.

        Raises:
            GroupNotFound: There is none.
        """
        group = self.find(group_id)
        if group is None:
            raise GroupNotFound(
                f"there is no group {group_id!r}: submit it first, or check the id; it may also "
                "have been forgotten"
            )
        return group

    def is_submitting(self, group_id: str) -> bool:
        """Whether members of it are being submitted in this process."""
        return group_id in self._submitting

    def ended_after(self, number: int, after: int, most: int) -> list[tuple[int, int, int]]:
        """Members in the order of their ends: that number, the life, and the result's bytes."""
        return self._queue.peek(
            "SELECT ended_number, life, coalesce(length(result), 0) FROM runs"
            " INDEXED BY runs_of_group WHERE group_number = ? AND ended_number > ?"
            " ORDER BY ended_number LIMIT ?",
            (number, after, most),
        )

    def members(
        self,
        number: int,
        first: int,
        most: int = _POSITIONS,
        *,
        where: str = "",
        limit: int = _POSITIONS,
    ) -> list[StoredMember]:
        """Members from this position on, among the next `most`, that fulfil a condition."""
        rows = self._queue.peek(
            f"SELECT members.position, members.key, members.input, members.ref, {_RUN_COLUMNS}"
            " FROM members JOIN runs ON runs.life = members.life"
            " WHERE members.group_number = ? AND members.position >= ? AND members.position < ?"
            f" {where} ORDER BY members.position LIMIT ?",
            (number, first, first + most, limit),
        )
        return [
            StoredMember(position, key, data, ref, Run(*run))
            for position, key, data, ref, *run in rows
        ]

    def member_of_life(self, life: int) -> tuple[str, int, Run]:
        """Key and position of a member, by its run."""
        [row] = self._queue.peek(
            f"SELECT members.key, members.position, {_RUN_COLUMNS} FROM runs JOIN members"
            " ON members.group_number = runs.group_number AND members.position = runs.position"
            " WHERE runs.life = ?",
            (life,),
        )
        return row[0], row[1], Run(*row[2:])

    # -- submitting -------------------------------------------------------------------------

    def begin_submitting(self, group_id: str) -> None:
        self._submitting[group_id] = self._submitting.get(group_id, 0) + 1

    def end_submitting(self, group_id: str) -> None:
        left = self._submitting[group_id] - 1
        if left:
            self._submitting[group_id] = left
        else:
            del self._submitting[group_id]
            self.to_forget.set()
            group = self.find(group_id)
            self._tell(group_id if group is None else group.number)

    def open(
        self, tx: QueueTransaction, group_id: str, own: GroupOptions, options: dict[str, Any]
    ) -> None:
        """Make the group, if there is none, or go on with one whose submission was broken off."""
        group = self.find(group_id)
        if group is None:
            tx.execute(
                "INSERT INTO groups (number, queue, group_id, created_at, total, sealed, succeeded,"
                " failed, cancelled, ends, stopped, forgiven, forgiven_until, stop_after,"
                " signal_key, retention, temporary, options)"
                " VALUES (?, ?, ?, ?, 0, 0, 0, 0, 0, 0, 0, 0, 0, ?, ?, ?, ?, ?)",
                (self._take_number(), self.name, group_id, tx.now_ms, *own, pack(options)),
            )
            if own.is_temporary:
                self._temporary.add(group_id)
            tx.after_commit(lambda: self._opened(group_id))
        elif not group.sealed:
            self.renew(tx, group, own, options)

    def renew(
        self, tx: QueueTransaction, group: Group, own: GroupOptions, options: dict[str, Any]
    ) -> None:
        """The group is submitted again, with these options; what had stopped it counts no more."""
        tx.execute(
            "UPDATE groups SET stopped = 0, forgiven = failed, forgiven_until = ends,"
            " finished_at = iif(sealed, finished_at, NULL), stop_after = ?, signal_key = ?,"
            " retention = ?, temporary = ?, options = ? WHERE number = ?",
            (*own, pack(options), group.number),
        )
        tx.after_commit(lambda: self._opened(group.group_id))

    def _opened(self, group_id: str) -> None:
        self._some()
        self.stopped.discard(group_id)
        self._tell(group_id)

    def reopen(self, tx: QueueTransaction, group: Group) -> None:
        """What had stopped it counts no longer."""
        tx.execute(
            "UPDATE groups SET stopped = 0, forgiven = failed, forgiven_until = ends"
            " WHERE number = ?",
            (group.number,),
        )
        tx.after_commit(lambda: self.stopped.discard(group.group_id))

    def add(
        self, tx: QueueTransaction, group_id: str, first: int, members: list[NewMember]
    ) -> None:
        """Submit members from this position on; those that are known must be the same.

        Raises:
            GroupMismatch: They are not, or there are more than there were.
            DuplicateMemberKey: One has the key of another.
            GroupStopped: The group was stopped meanwhile.
            InputMismatch: A run that is none of the group's has the id of a member, and is active
                with another input.
        """
        group = self.get(group_id)
        known = self.members(group.number, first, len(members))
        for old, new in zip(known, members, strict=False):
            _compare(group_id, old, new)
            if old.has_lost_input:
                self._put_input(tx, Membership(group.number, old.position), new.submission.input)
        fresh = members[len(known) :]
        if not fresh:
            return
        if group.sealed:
            raise GroupMismatch(
                f"group {group_id!r} was submitted with {group.total:,} members, and is submitted "
                "now with more: choose another group id, or forget the group first"
            )
        if group.stopped:
            raise GroupStopped(
                f"group {group_id!r} was stopped while its members were submitted: "
                f"{group.total:,} were, of which {group.failed:,} have failed"
            )
        begin = first + len(known)
        for position, member in enumerate(fresh, begin):
            self._insert(tx, group, position, member)
        tx.execute(
            "UPDATE groups SET total = ?, finished_at = NULL WHERE number = ?",
            (begin + len(fresh), group.number),
        )

    def _insert(self, tx: QueueTransaction, group: Group, position: int, member: NewMember) -> None:
        submission, stored = member.submission, member.stored
        place = Membership(group.number, position)
        taken = tx.execute(
            "SELECT group_number, position FROM runs WHERE queue = ? AND run_id = ?",
            (self.name, submission.run_id),
        ).fetchone()
        if taken is not None and taken[0] == group.number:
            raise DuplicateMemberKey(
                f"members {taken[1]} and {position} of group {group.group_id!r} have the same key, "
                f"{member.key[:100]!r}: each needs one of its own"
            )
        if stored is not None:
            stored.use(tx)
        life, adopted = submission.apply_as_member(tx, place, fresh=taken is None)
        tx.execute(
            "INSERT INTO members (group_number, position, life, key, input, ref)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (
                *place,
                life,
                member.key,
                submission.input if adopted and stored is None else None,
                None if stored is None else stored.ref,
            ),
        )

    def seal(
        self,
        tx: QueueTransaction,
        group_id: str,
        total: int,
        own: GroupOptions,
        options: dict[str, Any],
    ) -> None:
        """That was all of the members.

        Raises:
            GroupMismatch: There were more.
        """
        group = self.get(group_id)
        if group.total != total:
            raise GroupMismatch(
                f"group {group_id!r} was submitted with {group.total:,} members, and is submitted "
                f"now with {total:,}: choose another group id, or forget the group first"
            )
        if group.sealed:
            self.renew(tx, group, own, options)
        else:
            tx.execute("UPDATE groups SET sealed = 1 WHERE number = ?", (group.number,))
            tx.after_commit(lambda: self._tell(group.number))
            if not group.pending:
                self._finish(tx, group)

    # -- what runs tell ---------------------------------------------------------------------

    def is_forgotten(self, number: int) -> bool:
        """Whether what is left of the group is only to be removed."""
        return not self._queue.peek(
            "SELECT 1 FROM groups WHERE number = ? AND group_id IS NOT NULL", (number,)
        )

    def mark(self, tx: QueueTransaction, place: Membership | None, job_id: str) -> None:
        """A run that was submitted alone is a member: its step tells so from now on."""
        if place is None:
            return
        found = tx.execute(
            "SELECT group_id, headers FROM groups JOIN jobs ON jobs.id = ? WHERE number = ?",
            (job_id, place.group_number),
        ).fetchone()
        if found is not None:  # or else the job was removed by hand
            group_id, headers = found
            marked = pack({**unpack(headers), HEADER_GROUP: group_id})
            tx.execute("UPDATE jobs SET headers = ? WHERE id = ?", (marked, job_id))

    def keep_input(self, tx: QueueTransaction, life: int, data: bytes | None = None) -> None:
        """A run's first step is going: if it is a member's, its input is kept with that.

        Without `data`, it is taken from the step's job; it is lost if that was removed by hand.
        """
        row = tx.execute(
            "SELECT runs.group_number, runs.position, runs.job_id FROM runs JOIN members"
            " ON members.group_number = runs.group_number AND members.position = runs.position"
            " WHERE runs.life = ? AND runs.step = 0"
            " AND members.input IS NULL AND members.ref IS NULL",
            (life,),
        ).fetchone()
        if row is None:
            return
        *place, job_id = row
        if data is None:
            found = tx.execute(
                "SELECT payload FROM jobs WHERE id = ? AND payload_ref IS NULL", (job_id,)
            ).fetchone()
            if found is None:
                return
            [data] = found
        self._put_input(tx, Membership(*place), data)

    def _put_input(self, tx: QueueTransaction, place: Membership, data: bytes | None) -> None:
        tx.execute(
            "UPDATE members SET input = ? WHERE group_number = ? AND position = ?", (data, *place)
        )

    def replaced(
        self, tx: QueueTransaction, place: Membership, status: int, end: int, life: int
    ) -> None:
        """A member begins a new life, this one; the one before had ended with this number."""
        tx.execute(_REPLACED[_STORED[status]], (end, place.group_number))
        tx.execute(
            "UPDATE members SET life = ? WHERE group_number = ? AND position = ?", (life, *place)
        )

    def ended(self, tx: QueueTransaction, life: int, status: TerminalStatus) -> None:
        """A run has ended, perhaps a member's."""
        row = tx.execute(
            "SELECT group_number, position, step FROM runs WHERE life = ? AND ended_number IS NULL",
            (life,),
        ).fetchone()
        if row is None or row[0] is None:
            return
        number, position, step = row
        if step and status is TerminalStatus.SUCCEEDED:  # nothing runs it again by itself
            self._put_input(tx, Membership(number, position), None)
        group = Group(*tx.execute(_ENDED[_COUNTERS[status]], (number,)).fetchone())
        tx.execute("UPDATE runs SET ended_number = ? WHERE life = ?", (group.ends, life))
        if not group.pending and (group.sealed or group.stopped):
            self._finish(tx, group)
        elif group.has_too_many_failures:
            self.stop(tx, group)
        tx.after_commit(lambda: self._tell(number))

    def _finish(self, tx: QueueTransaction, group: Group) -> None:
        """Nothing more will happen, unless members are submitted; that is told once."""
        finished = tx.execute(
            "UPDATE groups SET finished_at = ? WHERE number = ? AND finished_at IS NULL"
            " RETURNING 1",
            (tx.now_ms, group.number),
        ).fetchall()
        if finished and group.signal_key is not None:
            signal = new_signal(group.signal_key, group.group_id.encode(), None, "latest")
            self._signals.send(tx, signal, limited=False)
        tx.after_commit(self.to_forget.set)

    # -- stopping ---------------------------------------------------------------------------

    def stop(self, tx: QueueTransaction, group: Group, *, by_caller: bool = False) -> None:
        """From now on, no member begins; those that are active are to be cancelled.

        In the background, unless the caller does it.
        """
        if group.stopped:
            return
        tx.execute("UPDATE groups SET stopped = 1 WHERE number = ?", (group.number,))
        if not group.pending and not group.sealed:
            self._finish(tx, group)

        def stopped() -> None:
            self.stopped.add(group.group_id)
            if not by_caller:
                self.to_stop.set()

        tx.after_commit(stopped)

    def abandon(self, tx: QueueTransaction, group: Group) -> None:
        """Nobody wants it any more: what goes on is cancelled, and then it is forgotten."""
        self.stop(tx, group)
        tx.execute("UPDATE groups SET retention = 0 WHERE number = ?", (group.number,))
        tx.after_commit(self.to_forget.set)

    def active_runs(self, number: int, first: int, limit: int) -> tuple[list[str], int | None]:
        """Runs of the next members that are active and were not cancelled; where to go on."""
        [(last,)] = self._queue.peek(
            "SELECT max(position) FROM members WHERE group_number = ?", (number,)
        )
        if last is None or first > last:
            return [], None
        until = first + _POSITIONS
        rows = self._queue.peek(
            "SELECT members.position, runs.run_id FROM members"
            " JOIN runs ON runs.life = members.life JOIN jobs ON jobs.id = runs.job_id"
            " WHERE members.group_number = ? AND members.position >= ? AND members.position < ?"
            " AND runs.status = 0 AND jobs.cancel_requested IS NOT 1"
            " ORDER BY members.position LIMIT ?",
            (number, first, until, limit),
        )
        return [run_id for _, run_id in rows], rows[-1][0] + 1 if len(rows) == limit else until

    # -- forgetting -------------------------------------------------------------------------

    def forget(self, tx: QueueTransaction, group: Group) -> None:
        """From now on there is no such group; what belongs to it is still to be removed."""
        tx.execute("UPDATE groups SET group_id = NULL WHERE number = ?", (group.number,))

        def forgotten() -> None:
            self.stopped.discard(group.group_id)
            self._temporary.discard(group.group_id)
            self.to_forget.set()
            self._tell(group.number)

        tx.after_commit(forgotten)

    # -- waiting ----------------------------------------------------------------------------

    def add_reader(self, number: int | str) -> asyncio.Future[None]:
        """A future of the group's next change in this process; by its id while it is none yet."""
        reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers.setdefault(number, {})[reader] = None
        return reader

    def remove_reader(self, number: int | str, reader: asyncio.Future[None]) -> None:
        readers = self._readers.get(number)
        if readers is not None:
            readers.pop(reader, None)
            if not readers:
                del self._readers[number]

    def _tell(self, number: int | str) -> None:
        for reader in self._readers.pop(number, ()):
            if not reader.done():
                reader.set_result(None)


def _compare(group_id: str, old: StoredMember, new: NewMember) -> None:
    submission = new.submission
    if old.key != new.key:
        what = f"key {old.key[:100]!r}, not {new.key[:100]!r}"
    elif old.run.input_digest != submission.digest:
        what = f"another input (its key is {old.key[:100]!r})"
    elif old.run.workflow != submission.workflow:
        what = f"another workflow (its key is {old.key[:100]!r})"
    else:
        return
    raise GroupMismatch(
        f"group {group_id!r} was submitted before, and its member {old.position} has {what}: "
        "submit the same members in the same order, choose another group id, or forget the group"
    )
