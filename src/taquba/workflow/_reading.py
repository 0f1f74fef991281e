"""What can be read of runs: the same by their runtime and by a view in another process."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from taquba._checks import whole
from taquba.errors import IncompatibleStore
from taquba.workflow._group_listing import list_members, position_in
from taquba.workflow._group_records import GroupStatus, MemberPage, check_group_id
from taquba.workflow._group_rows import find_group, list_groups
from taquba.workflow._large import outcome_of_run
from taquba.workflow._listing import MAX_PAGE_SIZE, RunFilter, count_runs, list_runs
from taquba.workflow._records import (
    RunCounts,
    RunOutcome,
    RunPage,
    RunState,
    RunStatus,
    TerminalStatus,
)
from taquba.workflow._run import ACTIVE, find_run, status_of
from taquba.workflow._schema import WORKFLOW_SCHEMA
from taquba.workflow._submitting import check_run_id
from taquba.workflow._timeline import place_in, timeline_of
from taquba.workflow._timeline_records import TimelinePage

if TYPE_CHECKING:
    from taquba.queue import QueueReader

__all__ = ["RunReader"]


class RunReader:
    """What `WorkflowRuntime` and `WorkflowView` have in common: everything that reads."""

    _reader: QueueReader
    _queue_name: str

    async def status(self, run_id: str) -> RunStatus | None:
        """Where a run is, or None if the id is unknown. What it reports is durable.

        Raises:
            InconsistentRunState: The run's job was removed behind the runtime's back.
        """
        name = check_run_id(run_id)
        if not await self._enter():
            return None
        source = self._reader._source
        run = find_run(source.rows, self._queue_name, name)
        status = None if run is None else status_of(source.rows, run)
        await source.leave()
        return status

    async def outcome(self, run_id: str) -> RunOutcome | None:
        """What an ended run came to; None while it is active, or if the id is unknown.

        Raises:
            PayloadMissing, CorruptStore: The object that holds a large result is gone, or
                damaged.
            StoreError: It could not be read.
        """
        name = check_run_id(run_id)
        while await self._enter():
            source = self._reader._source
            run = find_run(source.rows, self._queue_name, name)
            await source.leave()
            if run is None or run.status == ACTIVE:
                return None
            outcome = await outcome_of_run(self._reader, run)
            if outcome is not None:
                return outcome
        return None

    async def timeline(
        self, run_id: str, *, limit: int = 100, after: str | None = None
    ) -> TimelinePage | None:
        """Every attempt of every step of a run, in the order of their ends; None if the id is
        unknown. What it reports is durable.

        It is noted by runtimes with ``keep_history=True``, and kept as long as the run; of one run
        the last 1,000 attempts are. Without that, only what is known of the step that the run is
        at is told: earlier attempts that failed, and the one that is under way. An attempt that
        was given back, since its process ended in an orderly way, does not count and is not told.

        Args:
            run_id: The run.
            limit: Attempts on the page at most, up to 10,000.
            after: The `next` of the page before. If the run has begun a new life since that page,
                nothing follows it.
        """
        name = check_run_id(run_id)
        whole(limit, "limit", 0, MAX_PAGE_SIZE)
        place = place_in(after)
        if not await self._enter():
            return None
        source = self._reader._source
        run = find_run(source.rows, self._queue_name, name)
        page = None if run is None else timeline_of(source.rows, run, limit=limit, place=place)
        await source.leave()
        return page

    async def runs(
        self,
        state: RunState | TerminalStatus | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        workflow: str | None = None,
        revision: str | None = None,
        error: str | None = None,
        error_type: str | None = None,
        submitted_after: datetime | None = None,
        submitted_before: datetime | None = None,
        ended_after: datetime | None = None,
        ended_before: datetime | None = None,
        newest_first: bool = False,
        limit: int = 100,
        after: str | None = None,
    ) -> RunPage:
        """Some runs, page by page, in the order of their submission. What it reports is durable.

        All filters that are given must hold. With `ended_after` or `ended_before`, runs are in
        the order of their ends. Pages by state or by the time of the end go by an index,
        `PENDING`, `RUNNING` and `CANCELLING` by that of the unfinished runs; for other filters
        runs are looked through, some at a time, and the event loop goes on between. A run
        that changes its state between two pages can be missed, or seen twice.

        Args:
            state: Only runs in this state, or that ended so; None: in any.
            headers: Only runs whose submitter gave all of these headers.
            workflow: Only runs submitted for the workflow of this name.
            revision: Only runs submitted for this revision.
            error: Only runs whose `error` contains this text.
            error_type: Only runs that an exception of this name ended.
            submitted_after: Only runs submitted at this time or later.
            submitted_before: Only runs submitted earlier than this.
            ended_after: Only runs that ended at this time or later.
            ended_before: Only runs that ended earlier than this.
            newest_first: In the opposite order.
            limit: Runs on the page at most, up to 10,000.
            after: The `next` of the page before, with the same filters.
        """
        wanted = RunFilter(
            state=state,
            headers=headers,
            workflow=workflow,
            revision=revision,
            error=error,
            error_type=error_type,
            submitted_after=submitted_after,
            submitted_before=submitted_before,
            ended_after=ended_after,
            ended_before=ended_before,
            newest_first=newest_first,
        )
        whole(limit, "limit", 0, MAX_PAGE_SIZE)
        if not await self._enter():
            return RunPage((), None)
        page = await list_runs(self._reader, self._queue_name, wanted, limit=limit, after=after)
        await self._reader._source.leave()
        return page

    async def run_counts(self) -> RunCounts:
        """How many runs are in which state, and how many ended how. What it reports is durable.

        They are counted some thousands at a time, and the event loop goes on between: a run
        that changes its state meanwhile can be missed, or be counted twice.
        """
        if not await self._enter():
            return RunCounts()
        counts = await count_runs(self._reader, self._queue_name)
        await self._reader._source.leave()
        return counts

    async def unfinished(self) -> int:
        """How many runs have not ended."""
        if not await self._enter():
            return 0
        [(count,)] = self._reader._source.rows(
            "SELECT count(*) FROM runs WHERE queue = ? AND status = 0", (self._queue_name,)
        )
        await self._reader._source.leave()
        return int(count)

    async def group_status(self, group_id: str) -> GroupStatus | None:
        """How many members of a group have ended how; None if there is none of this id.

        It takes the same time however many members there are. What it reports is durable.
        """
        name = check_group_id(group_id)
        if not await self._enter():
            return None
        source = self._reader._source
        group = find_group(source.rows, self._queue_name, name)
        await source.leave()
        return None if group is None else group.status()

    async def groups(self, *, limit: int = 100, after: str | None = None) -> list[GroupStatus]:
        """Some groups, in the order of their ids. What it reports is durable.

        Args:
            limit: So many at most, up to 10,000.
            after: Only groups whose ids come after this one.
        """
        whole(limit, "limit", 0, MAX_PAGE_SIZE)
        first = "" if after is None else check_group_id(after)
        if not await self._enter():
            return []
        source = self._reader._source
        found = list_groups(source.rows, self._queue_name, first, limit)
        await source.leave()
        return [group.status() for group in found]

    async def group_members(
        self,
        group_id: str,
        state: RunState | TerminalStatus | None = None,
        *,
        limit: int = 100,
        after: str | None = None,
    ) -> MemberPage | None:
        """Some members of a group, in the order of their submission; None if there is no group of
        this id. What it reports is durable.

        There is no index of their states: with `state`, members are looked through, some at a
        time, and the event loop goes on between.

        Args:
            group_id: The group.
            state: Only members in this state, or that ended so; None: in any.
            limit: Members on the page at most, up to 10,000.
            after: The `next` of the page before.
        """
        name = check_group_id(group_id)
        wanted = RunFilter(state=state)
        whole(limit, "limit", 0, MAX_PAGE_SIZE)
        first = position_in(after)
        if not await self._enter():
            return None
        source = self._reader._source
        group = find_group(source.rows, self._queue_name, name)
        if group is None:
            await source.leave()
            return None
        page = await list_members(self._reader, group.number, wanted, limit=limit, first=first)
        await source.leave()
        return page

    async def _enter(self) -> bool:
        """Begin to read; whether there are tables of workflows.

        Raises:
            IncompatibleStore: They are of another version.
        """
        source = self._reader._source
        await source.enter()
        rows = source.rows("SELECT version FROM schema_modules WHERE name = 'workflow'", ())
        if not rows:
            await source.leave()
            return False
        [(stored,)] = rows
        WORKFLOW_SCHEMA.check_not_newer(stored)
        if stored < WORKFLOW_SCHEMA.version:
            raise IncompatibleStore(
                f"the store's workflow tables have version {stored}, and this process knows "
                f"version {WORKFLOW_SCHEMA.version}: they are brought up to it when a runtime of "
                "this version is opened"
            )
        return True
