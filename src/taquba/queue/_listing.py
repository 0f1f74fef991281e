"""Jobs of a queue, page by page.

Where no index gives a queue's jobs in the wanted order, jobs are looked through a few thousand
at a time, so that a page of a large store does not hold the event loop up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from taquba.errors import InvalidArgument, InvalidType
from taquba.queue._columns import JOB_COLUMNS, PAYLOAD, SEQ, STATE
from taquba.queue._filter import JobFilter
from taquba.queue._records import Job, JobPage, JobState

if TYPE_CHECKING:
    from taquba.queue._source import Source

__all__ = ["Listing"]

_SLICE = 2000
"""Jobs that are looked through at once."""
_FILTERED_SLICE = 200
"""Jobs that a filter looks at before the event loop goes on."""
_READ_AT_ONCE = 1024 * 1024
"""Bytes of payloads of matching jobs that are read before the event loop goes on."""
_BEFORE_ALL = -(2**62)
_COLUMNS = [str(column) for column in JOB_COLUMNS.replace(" ", "").split(",")]
_SMALL = {"seq", "id", "queue", "state", "priority"} | {
    "enqueued_at",
    "ended_at",
    "last_error",
    "headers",
}
_LEAN_COLUMNS = ", ".join(column if column in _SMALL else "NULL" for column in _COLUMNS)
"""What filters and orders go by, at the same places: a filter must not read all payloads."""

_INDEXED = {
    JobState.PENDING: ("priority", "queue = ? AND state = 0"),
    JobState.DONE: ("ended_at", "queue = ? AND state = 3 AND state >= 3"),
}
"""States whose jobs an index gives by queue: what orders them, and the index's condition."""


class Listing:
    """One page. Its place is the pair of what orders the jobs, and a job's seq.

    Without payloads its jobs have no more than their ids and what filters go by.
    """

    def __init__(
        self,
        source: Source,
        queue: str,
        state: JobState | None,
        *,
        limit: int,
        after: str | None,
        wanted: JobFilter | None = None,
        payloads: bool = True,
    ) -> None:
        self._source = source
        self._queue = queue
        self._state = state
        self._limit = limit
        self._after = after
        self._filter = wanted
        self._payloads = payloads
        self._columns = JOB_COLUMNS if wanted is None and payloads else _LEAN_COLUMNS

    async def page(self) -> JobPage:
        """Read it."""
        key, seq = _BEFORE_ALL, 0
        await self._source.enter()
        number = self._source.queue_number(self._queue)
        if self._after is not None:
            place = self._parse(self._after, number)
            if place is None:
                return JobPage((), None)
            key, seq = place
        if number is None or self._limit == 0:
            return JobPage((), None)
        if self._filter is None:
            found = await self._find(number, key, seq, self._limit + 1)
        else:
            found = await self._find_matching(self._filter, number, key, seq)
        jobs = tuple(Job(row, self._queue) for _, row in found[: self._limit])
        if len(found) <= self._limit:
            return JobPage(jobs, None)
        key, row = found[self._limit - 1]
        state = "all" if self._state is None else int(self._state)
        return JobPage(jobs, f"{number}.{state}.{key}.{row[0]}")

    def _parse(self, after: object, number: int | None) -> tuple[int, int] | None:
        """The place that a cursor says; None if it is of another listing."""
        if not isinstance(after, str):
            raise InvalidType(f"after is {after!r}: give the `next` of a page")
        try:
            queue, state, key, seq = after.split(".")
            place = int(key), int(seq)
            its_queue, its_state = int(queue), None if state == "all" else JobState(int(state))
        except ValueError:
            raise InvalidArgument(f"after is {after!r}: give the `next` of a page") from None
        return place if (its_queue, its_state) == (number, self._state) else None

    async def _find_matching(
        self, wanted: JobFilter, number: int, key: int, seq: int
    ) -> list[tuple[int, tuple[Any, ...]]]:
        """As `_find`, of the jobs that a filter lets through."""
        found: list[tuple[int, tuple[Any, ...]]] = []
        read = 0
        while True:
            rows = await self._find(number, key, seq, _FILTERED_SLICE)
            for at, row in rows:
                if not wanted.matches(row) or len(found) > self._limit:
                    continue
                for kept in self._whole(row[SEQ]) if self._payloads else [row]:
                    if wanted.matches(kept):
                        found.append((at, kept))
                        read += len(kept[PAYLOAD] or b"")
                if read >= _READ_AT_ONCE:
                    read = 0
                    await self._pause()
            if len(rows) < _FILTERED_SLICE or len(found) > self._limit:
                return found[: self._limit + 1]
            key, seq = rows[-1][0], rows[-1][1][0]
            await self._pause()

    async def _find(
        self, number: int, key: int, seq: int, wanted: int
    ) -> list[tuple[int, tuple[Any, ...]]]:
        """The next jobs, at most as many as wanted, each with what orders it."""
        state = self._state
        if state is not None and state in _INDEXED:
            column, where = _INDEXED[state]
            rows = self._in_order(column, where, (number,), (key, seq), wanted)
            return [(row[_COLUMNS.index(column)], row) for row in rows]
        if state is JobState.DEAD:
            rows = self._source.rows(
                f"SELECT {self._columns} FROM jobs WHERE queue = ? AND state = 4 AND seq > ?"
                " ORDER BY seq LIMIT ?",
                (number, seq, wanted),
            )
            return [(0, row) for row in rows]
        if state is JobState.SCHEDULED:
            return await self._scheduled(number, key, seq, wanted)
        return await self._by_enqueueing(number, seq, wanted)

    async def _scheduled(
        self, number: int, key: int, seq: int, wanted: int
    ) -> list[tuple[int, tuple[Any, ...]]]:
        """The index has the scheduled jobs of all queues."""
        found: list[tuple[int, tuple[Any, ...]]] = []
        while True:
            rows = self._in_order("run_at", "state = 1", (), (key, seq), _SLICE, "seq, queue")
            for run_at, candidate, queue in rows:
                if queue == number:
                    found += [(run_at, row) for row in self._by_seq(candidate)]
            if len(rows) < _SLICE or len(found) >= wanted:
                return found[:wanted]
            key, seq = rows[-1][:2]
            await self._pause()

    async def _by_enqueueing(
        self, number: int, seq: int, wanted: int
    ) -> list[tuple[int, tuple[Any, ...]]]:
        found: list[tuple[int, tuple[Any, ...]]] = []
        where, parameters = "queue = ?", [number]
        if self._state is not None:
            where, parameters = "queue = ? AND state = ?", [number, int(self._state)]
        while True:
            end = self._source.rows(
                "SELECT seq FROM jobs WHERE seq > ? ORDER BY seq LIMIT 1 OFFSET ?",
                (seq, _SLICE - 1),
            )
            last = end[0][0] if end else 2**62
            rows = self._source.rows(
                f"SELECT {self._columns} FROM jobs WHERE {where} AND seq > ? AND seq <= ?"
                " ORDER BY seq LIMIT ?",
                (*parameters, seq, last, wanted - len(found)),
            )
            found += [(0, row) for row in rows]
            if not end or len(found) >= wanted:
                return found
            seq = last
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(0)
        await self._source.enter()

    def _in_order(
        self,
        column: str,
        where: str,
        parameters: tuple[int, ...],
        after: tuple[int, int],
        limit: int,
        columns: str = "",
    ) -> list[tuple[Any, ...]]:
        """Rows ordered by a column and seq. In two parts, since SQLite would search an index for
        the column alone, and run through all jobs that have the same value.
        """
        what = f"{column}, {columns}" if columns else self._columns
        key, seq = after
        rows = self._source.rows(
            f"SELECT {what} FROM jobs WHERE {where} AND {column} = ? AND seq > ?"
            " ORDER BY seq LIMIT ?",
            (*parameters, key, seq, limit),
        )
        if len(rows) < limit:
            rows += self._source.rows(
                f"SELECT {what} FROM jobs WHERE {where} AND {column} > ?"
                f" ORDER BY {column}, seq LIMIT ?",
                (*parameters, key, limit - len(rows)),
            )
        return rows

    def _by_seq(self, seq: int) -> list[tuple[Any, ...]]:
        return self._source.rows(f"SELECT {self._columns} FROM jobs WHERE seq = ?", (seq,))

    def _whole(self, seq: int) -> list[tuple[Any, ...]]:
        """A job that was found, unless it is gone or has changed its state meanwhile."""
        rows = self._source.rows(f"SELECT {JOB_COLUMNS} FROM jobs WHERE seq = ?", (seq,))
        return [row for row in rows if self._state is None or row[STATE] == self._state]
