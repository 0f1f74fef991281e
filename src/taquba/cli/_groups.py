"""``taquba groups``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from taquba.cli._arguments import Usage
from taquba.cli._following import following
from taquba.cli._owning import check_unowned, owning
from taquba.cli._run_changes import runtime_on
from taquba.cli._runs import run_as_json, wanted_state, what_of
from taquba.cli._text import amount, json_text, one_line, table

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.queue import Follower
    from taquba.workflow import GroupStatus

__all__ = [
    "cancel_command",
    "forget_command",
    "list_command",
    "members_command",
    "show_command",
]


async def list_command(options: argparse.Namespace, clock: Clock) -> int:
    """List groups."""
    from taquba.workflow import WorkflowView

    async with following(options, clock) as follower:
        view = WorkflowView(follower, queue_name=options.queue)
        groups = await view.groups(limit=options.limit + 1, after=options.after)
    page = groups[: options.limit]
    following_one = page[-1].group_id if len(groups) > len(page) > 0 else None
    if options.json:
        print(json_text({"groups": [_as_json(group) for group in page], "next": following_one}))
        return 0
    if not page:
        print(f"the runtime {options.queue!r} has no such groups; --queue names another")
        return 0
    rows = [["group", "state", "members", "succeeded", "failed", "cancelled", "pending"]]
    rows += [
        [
            group.group_id,
            _state(group),
            f"{group.total:,}",
            f"{group.succeeded:,}",
            f"{group.failed:,}",
            f"{group.cancelled:,}",
            f"{group.pending:,}",
        ]
        for group in page
    ]
    print(table(rows, right=(2, 3, 4, 5, 6)))
    if following_one is not None:
        print(f"\nmore: --after {following_one}")
    return 0


async def show_command(options: argparse.Namespace, clock: Clock) -> int:
    """Show one group."""
    async with following(options, clock) as follower:
        group = await _status(follower, options)
    if options.json:
        print(json_text(_as_json(group)))
        return 0
    rows = [
        ["group", group.group_id],
        ["state", _state(group)],
        ["members", f"{group.total:,}" + ("" if group.is_complete else " or more")],
        ["succeeded", f"{group.succeeded:,}"],
        ["failed", f"{group.failed:,}"],
        ["cancelled", f"{group.cancelled:,}"],
        ["pending", f"{group.pending:,}"],
    ]
    print(table(rows))
    return 0


async def members_command(options: argparse.Namespace, clock: Clock) -> int:
    """List the members of a group."""
    from taquba.workflow import WorkflowView

    async with following(options, clock) as follower:
        await _status(follower, options)
        view = WorkflowView(follower, queue_name=options.queue)
        page = await view.group_members(
            options.group, wanted_state(options), limit=options.limit, after=options.after
        )
    assert page is not None
    if options.json:
        members = [
            {"key": each.key, "position": each.position, **run_as_json(each.run)}
            for each in page.members
        ]
        print(json_text({"members": members, "next": page.next}))
        return 0
    if not page.members:
        print("no such members")
        return 0
    now_ms = clock.now_ms()
    rows = [["position", "key", "state", "step", "run", "what"]]
    rows += [
        [
            f"{each.position:,}",
            one_line(each.key),
            (each.run.status or each.run.state).value,
            str(each.run.current_step),
            each.run.run_id,
            one_line(what_of(each.run, now_ms)),
        ]
        for each in page.members
    ]
    print(table(rows, right=(0, 3)))
    if page.next is not None:
        print(f"\nmore: --after {page.next}")
    return 0


async def cancel_command(options: argparse.Namespace, clock: Clock) -> int:
    """Cancel the members of a group that have not ended."""
    async with following(options, clock) as follower:
        group = await _status(follower, options)
        changes = bool(group.pending)
        if changes:
            await check_unowned(follower, options, clock, call="RunGroup.cancel")
    count = 0
    if changes:
        async with owning(options, clock) as queue, runtime_on(queue, options.queue) as runtime:
            count = await runtime.group(options.group).cancel()
    if options.json:
        print(json_text({"group_id": options.group, "cancelled": count}))
    elif changes:
        print(f"cancelled {amount(count, 'member')} of group {options.group}")
    else:
        print(f"all members of group {options.group} have ended: there is nothing to cancel")
    return 0


async def forget_command(options: argparse.Namespace, clock: Clock) -> int:
    """Remove a group with its members' runs."""
    async with following(options, clock) as follower:
        group = await _status(follower, options)
        if group.pending:
            raise Usage(
                f"group {options.group!r} has {amount(group.pending, 'member')} that have not "
                "ended: 'taquba groups cancel' cancels them"
            )
        await check_unowned(follower, options, clock, call="RunGroup.forget")
    async with owning(options, clock) as queue, runtime_on(queue, options.queue) as runtime:
        await runtime.group(options.group).forget()
    if options.json:
        print(json_text({"group_id": options.group, "forgotten": group.total}))
    else:
        print(f"forgot group {options.group} with {amount(group.total, 'member')}")
    return 0


async def _status(follower: Follower, options: argparse.Namespace) -> GroupStatus:
    from taquba.workflow import WorkflowView

    view = WorkflowView(follower, queue_name=options.queue)
    status = await view.group_status(options.group)
    if status is None:
        raise Usage(
            f"there is no group {options.group!r} of the runtime {options.queue!r}: 'taquba groups "
            "list' shows those that there are, and --queue names another runtime"
        )
    return status


def _state(group: GroupStatus) -> str:
    """In a word, where it is."""
    if group.is_stopped:
        return "stopping" if group.pending else "stopped"
    if not group.is_complete:
        return "submitting"
    return "running" if group.pending else "finished"


def _as_json(group: GroupStatus) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "total": group.total,
        "succeeded": group.succeeded,
        "failed": group.failed,
        "cancelled": group.cancelled,
        "pending": group.pending,
        "is_complete": group.is_complete,
        "is_stopped": group.is_stopped,
        "is_finished": group.is_finished,
    }
