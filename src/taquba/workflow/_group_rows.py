"""Groups and their members as they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from taquba._msgpack import unpack
from taquba.workflow._group_records import GroupStatus
from taquba.workflow._run import SUCCEEDED, Run

if TYPE_CHECKING:
    from taquba.queue import StoredValue
    from taquba.workflow._run import Rows
    from taquba.workflow._submitting import Submission

__all__ = [
    "GROUP_COLUMNS",
    "Group",
    "GroupOptions",
    "Membership",
    "NewMember",
    "StoredMember",
    "find_group",
    "list_groups",
    "options_of",
]

GROUP_COLUMNS = (
    "number, group_id, total, sealed, succeeded, failed, cancelled, ends, stopped, stop_after,"
    " forgiven, forgiven_until,"
    " signal_key, options"
)


@dataclass(frozen=True, slots=True)
class Group:
    """One group, as stored."""

    number: int
    group_id: str
    total: int
    sealed: int
    succeeded: int
    failed: int
    cancelled: int
    ends: int
    stopped: int
    stop_after: int | None
    forgiven: int
    forgiven_until: int
    signal_key: str | None
    options: bytes

    @property
    def pending(self) -> int:
        """Members that have not ended."""
        return self.total - self.succeeded - self.failed - self.cancelled

    @property
    def has_too_many_failures(self) -> bool:
        """Whether as many have failed, since it was last submitted or resumed, as may."""
        return self.stop_after is not None and self.failed - self.forgiven >= self.stop_after

    def status(self) -> GroupStatus:
        return GroupStatus(
            group_id=self.group_id,
            total=self.total,
            succeeded=self.succeeded,
            failed=self.failed,
            cancelled=self.cancelled,
            is_complete=bool(self.sealed),
            is_stopped=bool(self.stopped),
        )


class Membership(NamedTuple):
    """Where a run belongs."""

    group_number: int
    position: int


class GroupOptions(NamedTuple):
    """What a group is submitted with."""

    stop_after: int | None
    signal_key: str | None
    retention_ms: int | None
    is_temporary: bool = False
    """Nobody could go on with it: it ends with the process that submits it."""


class NewMember(NamedTuple):
    """A member that is submitted: checked, and its large input stored."""

    key: str
    submission: Submission
    stored: StoredValue | None


class StoredMember(NamedTuple):
    """A member as stored, with its run."""

    position: int
    key: str
    input: bytes | None
    ref: str | None
    run: Run

    @property
    def has_lost_input(self) -> bool:
        """Whether it failed, and its step's job was removed by hand before it was known."""
        return self.run.status > SUCCEEDED and self.input is None and self.ref is None


def find_group(rows: Rows, queue: str, group_id: str) -> Group | None:
    """The group of this id."""
    found = rows(
        f"SELECT {GROUP_COLUMNS} FROM groups WHERE queue = ? AND group_id = ?", (queue, group_id)
    )
    return Group(*found[0]) if found else None


def list_groups(rows: Rows, queue: str, after: str, limit: int) -> list[Group]:
    """Groups in the order of their ids."""
    found = rows(
        f"SELECT {GROUP_COLUMNS} FROM groups WHERE queue = ? AND group_id > ?"
        " ORDER BY group_id LIMIT ?",
        (queue, after, limit),
    )
    return [Group(*row) for row in found]


def options_of(group: Group) -> dict[str, Any]:
    """Priority and attempt limit that the group was submitted with."""
    options: dict[str, Any] = unpack(group.options)
    return options
