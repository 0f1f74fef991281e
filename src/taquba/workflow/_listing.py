"""Runs of a queue name, page by page.

Indexes give them in the order of their submission, by how they ended, and in the order of their
ends. Other filters have no index: runs are looked through, some at a time, and the event loop
goes on between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from taquba._checks import as_datetime, moment, shown, wrong_type
from taquba._msgpack import unpack
from taquba.errors import InvalidArgument, InvalidType
from taquba.queue import _validate
from taquba.workflow._headers import own_headers
from taquba.workflow._records import RunCounts, RunPage, RunState, RunSummary, TerminalStatus
from taquba.workflow._run import ACTIVE, KINDS, STORED, TERMINAL, place_of

if TYPE_CHECKING:
    from taquba.queue import QueueReader

__all__ = [
    "MAX_PAGE_SIZE",
    "SUMMARY_COLUMNS",
    "WITH_JOBS",
    "RunFilter",
    "count_runs",
    "list_runs",
    "summary_of",
]

MAX_PAGE_SIZE = 10_000
"""Runs on a page."""
_SLICE = 200
"""Runs that are looked through before the event loop goes on."""
_COUNTED = 5_000
"""Entries of an index that are counted at once."""
_BEFORE_ALL = -(2**62)
_AFTER_ALL = 2**62
SUMMARY_COLUMNS = (
    "r.life, r.ended_at, r.status, r.run_id, r.step, r.submitted_at, r.error, r.error_kind,"
    " r.error_type, r.headers, r.workflow, r.revision, r.signal_key,"
    " j.state, j.cancel_requested, j.run_at, j.attempts"
)
WITH_JOBS = " LEFT JOIN jobs AS j ON r.status = 0 AND j.id = r.job_id"
_ALL = (ACTIVE, *STORED.values())
_LIFE, _ENDED_AT = 0, 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs are wanted, and in what order: conditions that must all hold."""

    state: RunState | TerminalStatus | None = None
    headers: Mapping[str, str] | None = None
    workflow: str | None = None
    revision: str | None = None
    error: str | None = None
    error_type: str | None = None
    submitted_after: datetime | None = None
    submitted_before: datetime | None = None
    ended_after: datetime | None = None
    ended_before: datetime | None = None
    newest_first: bool = False

    def __post_init__(self) -> None:
        if self.state is not None and not isinstance(self.state, (RunState, TerminalStatus)):
            raise InvalidType(
                f"state is {shown(self.state)}: give a RunState, a TerminalStatus, or None for any"
            )
        _validate.headers(self.headers)
        for name in ("workflow", "revision", "error", "error_type"):
            text: object = getattr(self, name)
            if text is not None and not isinstance(text, str):
                raise wrong_type(f"{name} must be a str", text)
        for name in ("submitted_after", "submitted_before", "ended_after", "ended_before"):
            at: object = getattr(self, name)
            if at is None:
                continue
            if not isinstance(at, datetime):
                raise wrong_type(f"{name} must be a datetime", at)
            if at.tzinfo is None:
                raise InvalidArgument(
                    f"{name} is {at!r}, without a time zone: use datetime.now(UTC) and the like"
                )
        if not isinstance(self.newest_first, bool):
            raise wrong_type("newest_first must be a bool", self.newest_first)

    @property
    def by_end(self) -> bool:
        """Whether the index of ends leads to them."""
        return self.ended_after is not None or self.ended_before is not None

    @property
    def order(self) -> str:
        """What a cursor belongs to."""
        return ("e" if self.by_end else "s") + ("-" if self.newest_first else "+")

    @property
    def statuses(self) -> tuple[int, ...]:
        """The stored statuses that they may have."""
        if isinstance(self.state, TerminalStatus):
            return (int(STORED[self.state]),)
        if self.state is None:
            return _ALL
        if self.state is RunState.TERMINATED:
            return _ALL[1:]
        return (ACTIVE,)

    def matches(self, run: RunSummary) -> bool:
        """Whether this one is wanted."""
        state = self.state
        if isinstance(state, RunState):
            if run.state is not state:
                return False
        elif state is not None and run.status is not state:
            return False
        if self.headers and any(
            run.headers.get(name) != text for name, text in self.headers.items()
        ):
            return False
        for wanted, found in (
            (self.workflow, run.workflow),
            (self.revision, run.revision),
            (self.error_type, run.error_type),
        ):
            if wanted is not None and wanted != found:
                return False
        if self.error is not None and self.error not in (run.error or ""):
            return False
        return _within(run.submitted_at, self.submitted_after, self.submitted_before) and (
            not self.by_end or _within(run.ended_at, self.ended_after, self.ended_before)
        )


async def list_runs(
    reader: QueueReader, queue: str, wanted: RunFilter, *, limit: int, after: str | None
) -> RunPage:
    """One page. Its place is the pair of what orders the runs, and a life."""
    place = _start(wanted) if after is None else _parse(after, wanted)
    source = reader._source
    found: list[tuple[tuple[int, int], RunSummary]] = []
    size = min(limit + 1, _SLICE)
    while limit:
        await source.enter()
        rows = _slice(reader, queue, wanted, place, size)
        for row in rows:
            run = summary_of(row)
            if wanted.matches(run):
                found.append((_place(wanted, row), run))
        if len(rows) < size or len(found) > limit:
            break
        place = _place(wanted, rows[-1])
        size = _SLICE
        await asyncio.sleep(0)
    page = tuple(run for _, run in found[:limit])
    if len(found) <= limit:
        return RunPage(page, None)
    key, life = found[limit - 1][0]
    return RunPage(page, f"{wanted.order}.{key}.{life}")


async def count_runs(reader: QueueReader, queue: str) -> RunCounts:
    """How many runs are where. What changes while this counts may be counted or not."""
    source = reader._source
    ended = dict.fromkeys(STORED.values(), 0)
    for status in ended:
        life = _BEFORE_ALL
        while True:
            await source.enter()
            [(count, last)] = source.rows(
                "SELECT count(*), max(life) FROM (SELECT life FROM runs INDEXED BY runs_by_status"
                " WHERE queue = ? AND status = ? AND life > ? ORDER BY life LIMIT ?)",
                (queue, int(status), life, _COUNTED),
            )
            ended[status] += count
            if count < _COUNTED:
                break
            life = last
            await asyncio.sleep(0)
    pending = running = cancelling = 0
    life = _BEFORE_ALL
    while True:
        await source.enter()
        rows = source.rows(
            "SELECT r.life, j.state, j.cancel_requested, j.run_at, j.attempts, NULL"
            f" FROM runs AS r INDEXED BY runs_by_status{WITH_JOBS}"
            " WHERE r.queue = ? AND r.status = 0 AND r.life > ? ORDER BY r.life LIMIT ?",
            (queue, life, _SLICE),
        )
        for row in rows:
            state, _, _ = place_of(*row[1:])
            running += state is RunState.RUNNING
            cancelling += state is RunState.CANCELLING
            pending += state is RunState.PENDING
        if len(rows) < _SLICE:
            break
        life = rows[-1][0]
        await asyncio.sleep(0)
    return RunCounts(
        pending,
        running,
        cancelling,
        **{status.value: ended[stored] for status, stored in STORED.items()},
    )


def _slice(
    reader: QueueReader, queue: str, wanted: RunFilter, place: tuple[int, int], size: int
) -> list[tuple[Any, ...]]:
    """The next runs of the order, whether they match or not; fewer than asked for at the end."""
    rows = reader._source.rows
    above, order = ("<", "DESC") if wanted.newest_first else (">", "ASC")
    if wanted.by_end:
        # One bound on each side: of two, SQLite would choose one, and run through the rest.
        low, high = _bounds(wanted)
        beyond, bound = (">=", low) if wanted.newest_first else ("<=", high)
        return rows(
            f"SELECT {SUMMARY_COLUMNS} FROM runs AS r INDEXED BY runs_ended{WITH_JOBS}"
            f" WHERE r.queue = ? AND r.status > 0 AND r.ended_at {beyond} ?"
            f" AND (r.ended_at, r.life) {above} (?, ?)"
            f" ORDER BY r.ended_at {order}, r.life {order} LIMIT ?",
            (queue, bound, *place, size),
        )
    found: list[tuple[Any, ...]] = []
    for status in wanted.statuses:
        found += rows(
            f"SELECT {SUMMARY_COLUMNS} FROM runs AS r INDEXED BY runs_by_status{WITH_JOBS}"
            f" WHERE r.queue = ? AND r.status = ? AND r.life {above} ?"
            f" ORDER BY r.life {order} LIMIT ?",
            (queue, status, place[1], size),
        )
    found.sort(key=lambda row: int(row[_LIFE]), reverse=wanted.newest_first)
    return found[:size]


def summary_of(row: tuple[Any, ...]) -> RunSummary:
    """The run of a row of `SUMMARY_COLUMNS`."""
    (_, ended_at, status, run_id, step, submitted_at, error, kind, error_type, headers) = row[:10]
    workflow, revision, signal_key, job_state, cancelled, due_ms, attempts = row[10:]
    state, waiting_for, due = RunState.TERMINATED, None, None
    if status == ACTIVE:
        state, waiting_for, due = place_of(job_state, cancelled, due_ms, attempts, signal_key)
    return RunSummary(
        run_id=run_id,
        state=state,
        status=None if status == ACTIVE else TERMINAL[status],
        current_step=step,
        submitted_at=moment(submitted_at),
        ended_at=as_datetime(ended_at),
        error=error,
        error_kind=KINDS[kind],
        error_type=error_type,
        headers=own_headers(unpack(headers)),
        workflow=workflow,
        revision=revision,
        waiting_for=waiting_for,
        due=due,
    )


def _place(wanted: RunFilter, row: tuple[Any, ...]) -> tuple[int, int]:
    return (row[_ENDED_AT] if wanted.by_end else 0, row[_LIFE])


def _start(wanted: RunFilter) -> tuple[int, int]:
    low, high = _bounds(wanted)
    return (high, _AFTER_ALL) if wanted.newest_first else (low, _BEFORE_ALL)


def _bounds(wanted: RunFilter) -> tuple[int, int]:
    """First and last millisecond of the ends that are wanted."""
    low = _BEFORE_ALL if wanted.ended_after is None else _ms(wanted.ended_after)
    high = _AFTER_ALL if wanted.ended_before is None else _ms(wanted.ended_before) - 1
    return low, high


def _parse(after: object, wanted: RunFilter) -> tuple[int, int]:
    """The place that a cursor says."""
    if not isinstance(after, str):
        raise InvalidType(f"after is {shown(after)}: give the `next` of a page")
    try:
        order, key, life = after.split(".")
        place = int(key), int(life)
        if max(abs(place[0]), abs(place[1])) > _AFTER_ALL:
            raise ValueError
    except ValueError:
        raise InvalidArgument(f"after is {shown(after)}: give the `next` of a page") from None
    if order != wanted.order:
        raise InvalidArgument(
            f"after is {shown(after)}, which is of a list in another order: give the `next` of a "
            "page with the same filters"
        )
    return place


def _within(at: datetime | None, after: datetime | None, before: datetime | None) -> bool:
    return at is not None and (after is None or at >= after) and (before is None or at < before)


def _ms(at: datetime) -> int:
    """The first millisecond that is not before this."""
    return -((_EPOCH - at) // timedelta(milliseconds=1))
