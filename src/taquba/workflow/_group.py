"""Groups of runs that are submitted, watched, cancelled and forgotten together."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, final

from taquba._checks import shown, whole, wrong_type
from taquba.clock import Duration, seconds
from taquba.errors import (
    GroupActive,
    GroupIncomplete,
    GroupNotFound,
    InvalidArgument,
)
from taquba.workflow._group_members import (
    GroupMembers,
    check_keys,
    check_members,
    check_options,
)
from taquba.workflow._group_records import (
    GroupStatus,
    MemberResult,
    check_group_id,
)
from taquba.workflow._group_removal import remove_some
from taquba.workflow._group_results import page_by_completion, page_by_submission, told_in_order
from taquba.workflow._group_rows import Group, GroupOptions, options_of
from taquba.workflow._group_submission import GroupSubmission
from taquba.workflow._group_upkeep import cancel_members
from taquba.workflow._signal import check_signal_key

if TYPE_CHECKING:
    from taquba.queue import Queue
    from taquba.workflow._group_table import GroupTable
    from taquba.workflow._runs import RunTable

__all__ = ["GroupMembers", "Grouping", "RunGroup"]

_MAX_HINT = 1000
_FOR_EVER_MS = 2**52


class Grouping(ABC):
    """What a runtime offers groups."""

    _queue: Queue

    def group(
        self,
        group_id: str,
        *,
        stop_after_failures: int | None = None,
        signal_when_finished: str | None = None,
        retention: Duration | None = None,
    ) -> RunGroup:
        """A group of runs, by its id; nothing is looked up or written.

        Args:
            group_id: 1 to 128 characters of ``A-Z a-z 0-9 _ -``; it belongs to this runtime's
                queue name.
            stop_after_failures: When so many members have failed since the group was submitted or
                resumed, it stops: those that have not begun never begin, and the others are
                cancelled. None: it never does.
            signal_when_finished: Key of a signal that is sent when the last member has ended, in
                that very transaction, with the group's id as its payload: for a step that waits
                for the group with ``Continue(signal=…)``, of a run of the same queue name. It is
                sent also if the buffer of that key is full.
            retention: The group is forgotten this long after its last member's end. None: after
                the runtime's retention, or never, if that has none.

        The options are those that the group is submitted with; they do not matter to the calls
        that only look.

        Raises:
            InvalidArgument: Something of the above is wrong.
        """
        return RunGroup(
            self,
            check_group_id(group_id),
            GroupOptions(
                stop_after=None
                if stop_after_failures is None
                else whole(stop_after_failures, "stop_after_failures", 1, 2**31 - 1),
                signal_key=None
                if signal_when_finished is None
                else check_signal_key(signal_when_finished),
                retention_ms=None
                if retention is None
                else int(seconds(retention, name="retention") * 1000),
            ),
        )

    @abstractmethod
    def _opened(self) -> RunTable:
        """The runs, if the runtime is entered."""

    @abstractmethod
    async def _wait_for(self, change: asyncio.Future[Any], limit: float | None) -> bool:
        """Wait for this, but not beyond the end of queue or runtime; whether it came."""


@final
class RunGroup:
    """Runs that are submitted, watched, cancelled and forgotten together.

    Made by `WorkflowRuntime.group`. It holds nothing but its id: another one with the same id, also
    after a restart, is as good. All that is known of a group changes in the transactions that
    change its members, so that its counters are always right.

    Example:
        >>> from taquba.queue import Queue
        >>> from taquba.workflow import GroupMember, Step, Succeed, WorkflowRuntime
        >>> async def shout(step: Step):
        ...     return Succeed(step.payload.upper())
        >>> async def main() -> None:
        ...     async with Queue.open("memory://") as queue:
        ...         async with WorkflowRuntime(queue, shout) as runtime:
        ...             group = runtime.group("greetings")
        ...             await group.submit([GroupMember("a", b"hello"), GroupMember("b", b"bye")])
        ...             async for result in group.results(order="submission"):
        ...                 print(result.key, result.outcome.result)
        ...             print((await group.status()).succeeded)
        >>> asyncio.run(main())
        a b'HELLO'
        b b'BYE'
        2
    """

    __slots__ = ("_limits", "_options", "_runtime", "group_id")

    group_id: str
    """The group's id."""

    def __init__(self, runtime: Grouping, group_id: str, options: GroupOptions) -> None:
        """Not for callers: use `WorkflowRuntime.group`."""
        self._runtime = runtime
        self.group_id = group_id
        self._options = options
        self._limits: Mapping[str | None, int | None] = {}
        """Attempts of the members of a workflow, unless the submission says it."""

    # -- submitting -------------------------------------------------------------------------

    async def submit(
        self,
        members: GroupMembers,
        *,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
    ) -> GroupStatus:
        """Submit the members, and run those again that have failed or were cancelled before.

        They are taken from the iterator some at a time, when the ones before are on their way to
        the store; a million of them need no memory of this process's beyond the state itself.
        While an asynchronous one has no more yet, those that are there are submitted already.
        When this returns, all of them survive any crash. If it is broken off, those that
        were submitted go on; submit the same members again, and it goes on where it was.

        Submitting a group again compares all of its members, and then begins new lives of
        those that have failed or were cancelled. Those that are active or have succeeded
        are not run again.

        Args:
            members: In their order, with keys that differ. If all of them are there (a list, for
                example), two with the same key are found before anything is written; and if
                they are no more than 100, they are submitted all or none.
            headers: Text that every step and the outcome of each member carry; those of the member
                itself are added.
            priority: Of every step; lower is served first.
            max_attempts: Of every step; default: the queue's.

        Raises:
            GroupMismatch: The group was submitted before with other members, or in another order.
            DuplicateMemberKey: Two members have the same key.
            GroupStopped: It was cancelled, or had as many failures as it may, meanwhile.
            InputMismatch: A run with a member's id is active, with another input.
            UnknownWorkflow: Runtimes of this process run workflows, and this is none of them.
            InvalidArgument: Something of the above is wrong.
            Fenced: Another process took the store over.
        """
        table = self._table()
        options = {"priority": priority, "max_attempts": max_attempts}
        check_options(headers, options)
        check_members(members)
        if isinstance(members, Collection):
            check_keys(members)
        earlier = table.find(self.group_id)
        submission = self._submission(options)
        table.begin_submitting(self.group_id)
        try:
            first = await submission.submit_all(members, headers)
            queue = self._runtime._queue
            async with queue.committing() as tx:
                if not first:
                    table.open(tx, self.group_id, self._options, options)
                table.seal(tx, self.group_id, first, self._options, options)
            if earlier is not None:
                await submission.run_again(earlier, headers)
        finally:
            table.end_submitting(self.group_id)
        return await self.status()

    async def _open(self, priority: int | None, max_attempts: int | None) -> None:
        """Make the group, so that its results can be waited for before its first members come."""
        options = {"priority": priority, "max_attempts": max_attempts}
        check_options(None, options)
        async with self._runtime._queue.committing() as tx:
            self._table().open(tx, self.group_id, self._options, options)

    def _be_temporary(self) -> None:
        """It ends with this process, which is the only one that can go on with it."""
        self._options = self._options._replace(is_temporary=True, retention_ms=_FOR_EVER_MS)

    async def _abandon(self) -> None:
        """Let what goes on be cancelled, and the group be forgotten then."""
        async with self._runtime._queue.committing() as tx:
            group = self._table().find(self.group_id)
            if group is not None:
                self._table().abandon(tx, group)

    async def resume(
        self,
        *,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
    ) -> GroupStatus:
        """Run the members again that have failed or were cancelled, with what is stored of them.

        Args:
            headers: As for `submit`; they are added to those that the members had.
            priority: As for `submit`; default: as the group was submitted.
            max_attempts: As for `submit`; default: as the group was submitted.

        Raises:
            GroupNotFound: There is no such group.
            GroupIncomplete: Its submission was broken off, or the jobs of members were removed
                behind the runtime's back, and their inputs with them; all others were run again.
                Submit the same members again.
            InvalidArgument: Something of the above is wrong; nothing was written.
            Fenced: Another process took the store over.
        """
        table = self._table()
        group = table.get(self.group_id)
        self._check_complete(group)
        given = {"priority": priority, "max_attempts": max_attempts}
        options = options_of(group) | {name: v for name, v in given.items() if v is not None}
        check_options(headers, options)
        table.begin_submitting(self.group_id)
        try:
            async with self._runtime._queue.committing() as tx:
                table.reopen(tx, group)
            await self._submission(options).run_again(group, headers)
        finally:
            table.end_submitting(self.group_id)
        return await self.status()

    # -- looking ----------------------------------------------------------------------------

    async def status(self) -> GroupStatus:
        """How many members have ended how. What it reports is durable.

        Raises:
            GroupNotFound: There is no such group.
            Fenced: Another process took the store over.
        """
        status = self._table().get(self.group_id).status()
        await self._runtime._queue.barrier()
        return status

    async def results(
        self,
        *,
        order: Literal["completion", "submission"] = "completion",
        concurrency_hint: int = 16,
        progress: Callable[[GroupStatus], object] | None = None,
    ) -> AsyncIterator[MemberResult]:
        """The ends of all members, as they come. What it reports is durable.

        Those that have ended already come first. It waits for the others, also for those that are
        being submitted (begin as soon as `submit` has), and ends when no more can come. It can be
        called as often as you like, and begins anew each time. A member that is run again meanwhile
        comes again.

        Args:
            order: ``"completion"``: in the order of their ends. ``"submission"``: in that of
                their submission.
            concurrency_hint: So many large results are read from the store at once, 1 to 1,000.
            progress: Is called with the group's state before each wait, and at the end.

        Raises:
            GroupNotFound: There is no such group; or it was forgotten meanwhile.
            GroupIncomplete: Its submission was broken off; all that is known has been told.
            InvalidArgument: Something of the above is wrong.
            Fenced: Another process took the store over.
            Closed: The runtime was closed meanwhile.
            PayloadMissing, CorruptStore, StoreError: A large result cannot be read.
        """
        if order not in ("completion", "submission"):
            raise InvalidArgument(f"order is {shown(order)}: give 'completion' or 'submission'")
        whole(concurrency_hint, "concurrency_hint", 1, _MAX_HINT)
        if progress is not None and not callable(progress):
            raise wrong_type("progress must be a function of a GroupStatus", progress)
        table = self._table()
        number = await self._begun(None)
        pages = page_by_completion if order == "completion" else page_by_submission
        at = 0
        while True:
            group = table.find(self.group_id)
            if group is None or group.number != number:
                raise GroupNotFound(f"group {self.group_id!r} was forgotten meanwhile")
            change = table.add_reader(number)
            try:
                page, at = pages(table, number, at)
                if page:
                    async for result in told_in_order(self._runtime._queue, page, concurrency_hint):
                        yield result
                    continue
                if progress is not None:
                    progress(group.status())
                if not group.pending and not table.is_submitting(self.group_id):
                    await self._runtime._queue.barrier()
                    if not group.stopped:
                        self._check_complete(group)
                    return
                await self._runtime._wait_for(change, None)
            finally:
                table.remove_reader(number, change)

    async def gather(
        self, *, progress: Callable[[GroupStatus], object] | None = None
    ) -> list[MemberResult]:
        """The ends of all members, in the order of their submission; see `results`."""
        ends = {
            result.position: result
            async for result in self.results(order="completion", progress=progress)
        }
        return [ends[position] for position in sorted(ends)]

    async def wait(self, timeout: Duration | None = None) -> GroupStatus:
        """Wait until all members have ended. What it reports is durable.

        Args:
            timeout: Give up after this long; the group is not affected. None: never.

        Raises:
            GroupNotFound: There is no such group; or it was forgotten meanwhile.
            GroupIncomplete: Its submission was broken off, and those that are known have ended.
            TimeoutError: Some members had not ended in time.
            Fenced: Another process took the store over.
            Closed: The runtime was closed meanwhile.
        """
        clock = self._runtime._queue.clock
        until = None
        if timeout is not None:
            until = clock.monotonic() + seconds(timeout, name="timeout")
        table = self._table()
        number = await self._begun(until)
        while True:
            group = table.get(self.group_id)
            if not group.pending and not table.is_submitting(self.group_id):
                if not group.stopped:
                    self._check_complete(group)
                return await self.status()
            change = table.add_reader(number)
            try:
                left = None if until is None else max(until - clock.monotonic(), 0.0)
                if not await self._runtime._wait_for(change, left):
                    raise TimeoutError(
                        f"group {self.group_id!r} has {group.pending:,} members that did not end "
                        "in time; they go on"
                    )
            finally:
                table.remove_reader(number, change)

    async def _begun(self, until: float | None) -> int:
        """The group's number, which it gets with the first members that are being submitted."""
        table, clock = self._table(), self._runtime._queue.clock
        while table.find(self.group_id) is None and table.is_submitting(self.group_id):
            change = table.add_reader(self.group_id)
            try:
                left = None if until is None else max(until - clock.monotonic(), 0.0)
                if not await self._runtime._wait_for(change, left):
                    raise TimeoutError(f"group {self.group_id!r} has no members yet")
            finally:
                table.remove_reader(self.group_id, change)
        return table.get(self.group_id).number

    # -- ending -----------------------------------------------------------------------------

    async def cancel(self) -> int:
        """Cancel all members that have not ended, also those that are still being submitted.

        Returns:
            Of how many members cancellation was asked for now; 0 if there is no such group.
            Those that are running end when their steps do, as with `WorkflowRuntime.cancel`.

        Raises:
            Fenced: Another process took the store over.
        """
        table, queue = self._table(), self._runtime._queue
        group = table.find(self.group_id)
        if group is None or (not group.pending and not table.is_submitting(self.group_id)):
            return 0
        try:
            async with queue.committing() as tx:
                table.stop(tx, group, by_caller=True)
            return await cancel_members(queue, self._runtime._opened(), group)
        except BaseException:
            table.to_stop.set()  # goes on in the background
            raise

    async def forget(self) -> None:
        """Remove the group with all that is known of it, and of its members' runs.

        Its id can be used again at once. It does nothing if there is no such group.

        Raises:
            GroupActive: Some members have not ended, or are being submitted; nothing was removed.
            Fenced: Another process took the store over.
        """
        table, queue = self._table(), self._runtime._queue
        async with queue.committing() as tx:
            group = table.find(self.group_id)
            if group is None:
                return
            if group.pending or table.is_submitting(self.group_id):
                raise GroupActive(
                    f"group {self.group_id!r} has {group.pending:,} members that have not ended, "
                    "or more are being submitted: cancel it and wait, and then forget it"
                )
            table.forget(tx, group)
        while not remove_some(queue, group.number):
            await queue.ready()
            await asyncio.sleep(0)
        await queue.barrier()

    # ---------------------------------------------------------------------------------------

    def _check_complete(self, group: Group) -> None:
        if not group.sealed:
            raise GroupIncomplete(
                f"the submission of group {self.group_id!r} was broken off after {group.total:,} "
                "members: submit the same members again, and it goes on there"
            )

    def _submission(self, options: dict[str, Any]) -> GroupSubmission:
        runtime = self._runtime
        return GroupSubmission(
            runtime._queue, runtime._opened(), self.group_id, self._options, options, self._limits
        )

    def _table(self) -> GroupTable:
        return self._runtime._opened().groups

    def __repr__(self) -> str:
        return f"<RunGroup {self.group_id!r}>"
