"""Submitting the members of a group, and running those again that have failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Mapping
from typing import TYPE_CHECKING, Any, final

from taquba._checks import shown, wrong_type
from taquba._msgpack import unpack
from taquba.errors import GroupIncomplete, InvalidType
from taquba.workflow._group_members import GroupMembers
from taquba.workflow._group_records import GroupMember, check_member_key, member_run_id
from taquba.workflow._group_rows import Group, GroupOptions, NewMember
from taquba.workflow._headers import own_headers
from taquba.workflow._submitting import Submission, new_submission

if TYPE_CHECKING:
    from taquba.queue import Queue, QueueTransaction, StoredValue
    from taquba.workflow._runs import RunTable

__all__ = ["GroupSubmission"]

_CHUNK = 100
"""Members that one transaction submits, so that the event loop is never held up."""
_CHUNK_BYTES = 1024 * 1024
"""Of their inputs, likewise."""


class _Chunk:
    """Members that one transaction submits."""

    __slots__ = ("first", "keys", "size", "submissions")

    def __init__(self, first: int) -> None:
        self.first = first
        self.keys: list[str] = []
        self.submissions: list[Submission] = []
        self.size = 0

    def add(self, key: str, submission: Submission) -> None:
        self.keys.append(key)
        self.submissions.append(submission)
        self.size += len(submission.input)

    @property
    def is_full(self) -> bool:
        return len(self.keys) >= _CHUNK or self.size >= _CHUNK_BYTES

    def following(self) -> _Chunk:
        """One for those that come behind these."""
        return _Chunk(self.first + len(self.keys))


@final
class GroupSubmission:
    """One submission of a group, in chunks of which each is a transaction."""

    __slots__ = ("_group_id", "_limits", "_options", "_own", "_queue", "_runs")

    def __init__(
        self,
        queue: Queue,
        runs: RunTable,
        group_id: str,
        own: GroupOptions,
        options: dict[str, Any],
        limits: Mapping[str | None, int | None],
    ) -> None:
        self._queue = queue
        self._runs = runs
        self._group_id = group_id
        self._own = own
        self._options = options
        self._limits = limits

    async def submit_all(self, members: GroupMembers, headers: Mapping[str, str] | None) -> int:
        """Submit them, from the first one on; how many there were."""
        if isinstance(members, AsyncIterable):
            return await self._submit_as_they_come(members, headers)
        chunk = _Chunk(0)
        for member in members:
            prepared = self._prepare(member, headers)
            chunk.add(member.key, prepared)
            if chunk.is_full:
                await self._submit_some(chunk)
                chunk = chunk.following()
        if chunk.keys:
            await self._submit_some(chunk)
        return chunk.following().first

    async def _submit_as_they_come(
        self, members: AsyncIterable[GroupMember], headers: Mapping[str, str] | None
    ) -> int:
        """Whenever the next one is not there yet, those that are there are submitted."""
        chunk = _Chunk(0)
        came, room = asyncio.Event(), asyncio.Event()
        are_all = False

        async def submit() -> None:
            nonlocal chunk
            while not are_all or chunk.keys:
                await came.wait()
                came.clear()
                if chunk.keys:
                    there, chunk = chunk, chunk.following()
                    room.set()
                    await self._submit_some(there)
                    came.set()

        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                submitting = tasks.create_task(submit())
                async for member in members:
                    prepared = self._prepare(member, headers)
                    chunk.add(member.key, prepared)
                    came.set()
                    while chunk.is_full and not submitting.done():
                        room.clear()
                        await room.wait()
                are_all = True
                came.set()
        except BaseExceptionGroup as group:
            failure = group.exceptions[0]
        if failure is not None:
            raise failure
        return chunk.first

    async def _submit_some(self, some: _Chunk) -> None:
        first, keys, chunk = some.first, some.keys, some.submissions
        table, queue = self._runs.groups, self._queue
        large = [each for each in chunk if len(each.input) > queue.offloads_above]
        known = table.find(self._group_id)
        inputs: dict[int, StoredValue] = {}

        def apply(tx: QueueTransaction) -> None:
            if first == 0:
                table.open(tx, self._group_id, self._own, self._options)
            members = [
                NewMember(key, each, inputs.get(id(each)))
                for key, each in zip(keys, chunk, strict=True)
            ]
            table.add(tx, self._group_id, first, members)

        try:
            if large:
                if known is None or first + len(chunk) > known.total:
                    for each in large:
                        inputs[id(each)] = await queue.store_value(each.input)
                async with queue.committing(*(job for each in large for job in each.jobs)) as tx:
                    apply(tx)
            else:
                await queue.ready()
                with queue.transaction() as tx:
                    apply(tx)
        finally:
            for stored in inputs.values():
                stored.finish()
        await asyncio.sleep(0)  # others have their turn, also if the members are all there

    def _prepare(self, member: object, headers: Mapping[str, str] | None) -> Submission:
        if not isinstance(member, GroupMember):
            raise wrong_type("a group consists of GroupMember(…)", member)
        own = member.headers
        if own is not None and not isinstance(own, Mapping):
            raise InvalidType(f"headers must be a mapping of str to str, not {shown(own)}")
        return new_submission(
            self._runs,
            member.input,
            run_id=member_run_id(self._group_id, check_member_key(member.key)),
            workflow=member.workflow,
            revision=member.revision,
            headers={**(headers or {}), **(own or {})} if own else headers,
            group_id=self._group_id,
            priority=self._options["priority"],
            max_attempts=(
                self._limits.get(member.workflow)
                if self._options["max_attempts"] is None
                else self._options["max_attempts"]
            ),
        )

    async def run_again(self, group: Group, headers: Mapping[str, str] | None) -> None:
        """Begin new lives of the members that had failed or were cancelled by that moment.

        If the group is stopped meanwhile, no more begin.

        Raises:
            GroupIncomplete: The inputs of some are gone; all others were run again.
        """
        runs, queue, table = self._runs, self._queue, self._runs.groups
        left = group.failed + group.cancelled
        first = lost = 0
        where = f"AND runs.status > 1 AND runs.ended_number <= {group.ends}"
        while left > 0 and first < group.total:
            failed = table.members(group.number, first, where=where, limit=_CHUNK)
            first = failed[-1].position + 1 if len(failed) == _CHUNK else first + 2000
            left -= len(failed)
            wanted: list[tuple[int, Submission]] = []
            for member in failed:
                data, run = member.input, member.run
                if member.ref is not None:
                    data = await queue.fetch_value(member.ref)
                if data is None:
                    lost += 1
                    continue
                again = GroupMember(
                    member.key,
                    data,
                    run.workflow,
                    run.revision,
                    own_headers(unpack(run.headers)) | dict(headers or {}),
                )
                wanted.append((run.life, self._prepare(again, None)))
            if wanted:
                jobs = [job for _, each in wanted for job in each.jobs]
                async with queue.committing(*jobs) as tx:
                    if table.get(self._group_id).stopped:
                        return
                    for life, each in wanted:
                        known = runs.by_id(each.run_id)
                        if known is not None and known.life == life:  # nobody else did it
                            each.apply(tx)
            await asyncio.sleep(0)
        if lost:
            raise GroupIncomplete(
                f"{lost:,} members of group {self._group_id!r} were not run again, since the jobs "
                "of their first steps were removed by hand, and their inputs with them: submit "
                "the same members again"
            )
