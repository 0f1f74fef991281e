"""What is said to and by run groups."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from taquba._checks import identifier, plain, utf8, wrong_type
from taquba.errors import InvalidArgument, ValueTooLarge
from taquba.workflow._records import RunOutcome, RunSummary, RunTermination

__all__ = [
    "MAX_GROUP_ID_LENGTH",
    "MAX_MEMBER_KEY_SIZE",
    "GroupMember",
    "GroupStatus",
    "MemberPage",
    "MemberResult",
    "MemberSummary",
    "check_group_id",
    "check_member_key",
    "member_run_id",
]

MAX_GROUP_ID_LENGTH = 128
"""Characters of a group's id."""
MAX_MEMBER_KEY_SIZE = 1024
"""Bytes of a member's key, in UTF-8."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A run that is to be a member of a group."""

    key: str
    """Any text of at most 1,024 bytes of UTF-8, unlike those of the group's other members."""
    input: bytes
    """Payload of step 0, at most 16 MiB."""
    workflow: str | None = None
    """Name of the workflow that is to run it; None is the runner without a name."""
    revision: str | None = None
    """Of that workflow; None is the one that was registered last."""
    headers: Mapping[str, str] | None = None
    """Text that every step and the outcome carry."""


@dataclass(frozen=True, slots=True)
class MemberResult:
    """The end of a member."""

    key: str
    run_id: str
    termination: RunTermination
    outcome: RunOutcome
    position: int
    """Of the member in its group, from 0."""


@dataclass(frozen=True, slots=True)
class MemberSummary:
    """A member of a list, and its run."""

    key: str
    position: int
    """Of the member in its group, from 0."""
    run: RunSummary


@dataclass(frozen=True, slots=True)
class MemberPage:
    """Some members of a group."""

    members: tuple[MemberSummary, ...]
    next: str | None
    """Where the next page begins: the `after` of its call. None: this is the last one."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Where a group is."""

    group_id: str
    total: int
    """Members that are known."""
    succeeded: int
    failed: int
    cancelled: int
    is_complete: bool
    """Whether all members are known: false while they are submitted, and if that was broken off."""
    is_stopped: bool
    """Whether it was cancelled, or had as many failures as it may."""

    @property
    def ended(self) -> int:
        """Members that have ended, however."""
        return self.succeeded + self.failed + self.cancelled

    @property
    def pending(self) -> int:
        """Members that have not ended."""
        return self.total - self.ended

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will happen: all members are known and have ended."""
        return self.pending == 0 and (self.is_complete or self.is_stopped)


def check_group_id(group_id: object) -> str:
    """The group's id, if it is one.

    Raises:
        InvalidArgument: It is empty, too long, or has other characters than it may.
    """
    return identifier(group_id, name="group id", error=InvalidArgument, limit=MAX_GROUP_ID_LENGTH)


def check_member_key(key: object) -> str:
    """The member's key, if it is one.

    Raises:
        InvalidArgument: It is no text, or too long.
    """
    if not isinstance(key, str):
        raise wrong_type("the key of a member must be a str", key)
    if len(utf8(key, "the key of a member")) > MAX_MEMBER_KEY_SIZE:
        raise ValueTooLarge(
            f"the key of a member, {key[:40]!r}…, may have {MAX_MEMBER_KEY_SIZE:,} bytes of UTF-8"
        )
    return plain(key)


def member_run_id(group_id: str, key: str) -> str:
    """The id of the run that is this member: the SHA-256 of both, in hexadecimal."""
    return hashlib.sha256(f"{group_id}/{key}".encode()).hexdigest()
