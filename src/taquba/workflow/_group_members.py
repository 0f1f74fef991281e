"""Members of groups as the caller gives them, and what is checked before any is submitted."""

from __future__ import annotations

from collections.abc import AsyncIterable, Collection, Iterable, Mapping
from typing import Any, cast

from taquba._checks import wrong_type
from taquba.errors import DuplicateMemberKey
from taquba.workflow._group_records import GroupMember
from taquba.workflow._submitting import new_submission

__all__ = ["GroupMembers", "check_keys", "check_members", "check_options"]

GroupMembers = Iterable[GroupMember] | AsyncIterable[GroupMember]
"""Members of a group, in their order."""


def check_options(headers: Mapping[str, str] | None, options: dict[str, Any]) -> None:
    """Refuse what no member could be submitted with, whatever workflow runs it."""
    new_submission(None, b"", run_id="any", headers=headers, **options)


def check_keys(members: Collection[object]) -> None:
    """Refuse two members with the same key."""
    known: dict[str, int] = {}
    for position, member in enumerate(members):
        if isinstance(member, GroupMember) and isinstance(member.key, str):
            if member.key in known:
                raise DuplicateMemberKey(
                    f"members {known[member.key]} and {position} have the same key, "
                    f"{member.key[:100]!r}: each needs one of its own"
                )
            known[member.key] = position


def check_members(members: object) -> GroupMembers:
    """Something that members can come from, if it is that."""
    known = isinstance(members, (AsyncIterable, Iterable))
    if known and not isinstance(members, (str, bytes, Mapping)):
        return cast("GroupMembers", members)
    what = "members must be an iterable or async iterable of GroupMember(…)"
    raise wrong_type(what, members)  # pyright: ignore[reportUnknownArgumentType]
