"""What ``taquba info`` tells, gathered from a store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taquba.cli._prices import Requests
from taquba.database import DatabaseConfig, Replica, Survey, survey
from taquba.errors import CorruptStore
from taquba.journal import Entry, EpochMark, Position, read_entry, read_manifests

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.objectstore import ObjectStore

__all__ = ["Epoch", "Info", "QueueCounts", "Rate", "Table", "gather"]

_LOADED_UP_TO = 64 * 1024 * 1024
"""Bytes to fetch that nobody minds."""
_MONTH = 365.25 * 24 * 3600 / 12
_LISTS_PER_COLLECTION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The reign of one writer; its times and writer are None if its entry cannot be read."""

    epoch: int
    seq: int
    resume_at: int
    began_at_ms: int | None
    writer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table, and how many rows it has."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """A queue, and how many jobs are in each state."""

    name: str
    jobs: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How a store was written, observed over the entries and checkpoints that are kept."""

    seconds: float
    """The time that the entries span."""
    entries: int
    """How many there are beyond the first."""
    checkpoint_seconds: float
    """The time that the checkpoints span."""
    checkpoints: int
    """How many there are beyond the first."""
    new_chunks: int
    """Chunks that those had and the ones before them had not."""

    def per_month(self) -> Requests:
        """The requests of a month that goes on like this."""
        total = Requests()
        if self.seconds > 0:
            entries = Requests(put=self.entries).times(_MONTH / self.seconds)
            total = Requests(put=entries.put)
        if self.checkpoint_seconds > 0:
            taken = Requests(
                put=self.checkpoints + self.new_chunks,
                list=self.checkpoints * _LISTS_PER_COLLECTION,
                delete=self.checkpoints * _LISTS_PER_COLLECTION,
            ).times(_MONTH / self.checkpoint_seconds)
            total = Requests(put=total.put + taken.put, list=taken.list, delete=taken.delete)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """Everything."""

    survey: Survey
    position: Position
    """As far as the log is known."""
    damage: str
    """Why the database could not be loaded; empty if it could, or was not to be."""
    loaded: bool
    to_load: int
    """Bytes that loading it takes."""
    size: int
    """Bytes of the database; as of the newest checkpoint if it was not loaded."""
    tables: tuple[Table, ...]
    queues: tuple[QueueCounts, ...]
    epochs: tuple[Epoch, ...]
    """The newest ones, oldest of them first."""
    epoch: int
    """The epoch of the newest entry."""
    last_commit_ms: int | None
    last_writer: str | None
    rate: Rate


async def gather(
    store: ObjectStore,
    *,
    clock: Clock,
    config: DatabaseConfig,
    quick: bool,
    full: bool,
    epochs: int,
) -> Info | None:
    """Look at a store; None if there is nothing of taquba's in it."""
    from taquba.queue import PAYLOAD_PREFIX

    stock = await survey(store, other_prefixes=(PAYLOAD_PREFIX,))
    if not (stock.entries.count or stock.checkpoints.count or stock.epoch_entries.count):
        return None
    newest = stock.stored_checkpoints[-1] if stock.stored_checkpoints else None
    to_load = stock.entries_since.bytes + (newest.stored if newest else 0)
    replica: Replica | None = None
    damage = ""
    if full or (not quick and to_load <= _LOADED_UP_TO):
        try:
            replica = await Replica.open(store, clock=clock, config=config)
        except CorruptStore as error:
            damage = str(error)
    try:
        if replica is not None:
            position = replica.position
            stock = await survey(store, position=position, other_prefixes=(PAYLOAD_PREFIX,))
        else:
            position = await _known_position(store)
        tables, queues, size = _contents(replica)
    finally:
        if replica is not None:
            await replica.close()
    first, last = await _ends(store, stock)
    return Info(
        survey=stock,
        position=position,
        damage=damage,
        loaded=replica is not None,
        to_load=to_load,
        size=size if replica is not None else (newest.size if newest else 0),
        tables=tables,
        queues=queues,
        epochs=await _epochs(store, position.epochs[-epochs:] if epochs > 0 else ()),
        epoch=max(position.epoch, last.epoch if last else 0),
        last_commit_ms=None if last is None else last.committed_at_ms,
        last_writer=None if last is None else last.writer.hex(),
        rate=_rate(stock, first, last),
    )


async def _known_position(store: ObjectStore) -> Position:
    from taquba.journal import START

    read = (await read_manifests(store)).read
    return read[max(read)].position if read else START


def _contents(
    replica: Replica | None,
) -> tuple[tuple[Table, ...], tuple[QueueCounts, ...], int]:
    if replica is None:
        return (), (), 0
    names = [
        str(name)
        for (name,) in replica.rows(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%'"
            " ESCAPE '\\' ORDER BY name"
        )
    ]
    tables = tuple(Table(name=name, rows=_count(replica, name)) for name in names)
    ((pages,),) = replica.rows("SELECT page_count FROM pragma_page_count")
    ((page,),) = replica.rows("SELECT page_size FROM pragma_page_size")
    return tables, _queues(replica, names), int(pages) * int(page)


def _count(replica: Replica, table: str) -> int:
    quoted = '"' + table.replace('"', '""') + '"'
    ((count,),) = replica.rows(f"SELECT count(*) FROM {quoted}")
    return int(count)


def _queues(replica: Replica, tables: Sequence[str]) -> tuple[QueueCounts, ...]:
    if "queues" not in tables:
        return ()
    from taquba.queue import JobState

    states = [state.name.lower() for state in JobState]
    rows = replica.rows(f"SELECT name, {', '.join(states)} FROM queues ORDER BY name")
    return tuple(
        QueueCounts(name=str(name), jobs=dict(zip(states, map(int, counts), strict=True)))
        for name, *counts in rows
    )


async def _ends(store: ObjectStore, stock: Survey) -> tuple[Entry | None, Entry | None]:
    """The first and the last entry that is kept, if they can be read."""
    seqs = [seq for seq in (stock.first_entry, stock.last_entry) if seq is not None]
    read = await asyncio.gather(*(_entry(store, seq) for seq in seqs))
    return (read[0], read[-1]) if read else (None, None)


async def _entry(store: ObjectStore, seq: int) -> Entry | None:
    try:
        return await read_entry(store, seq)
    except CorruptStore:
        return None


async def _epochs(store: ObjectStore, marks: Sequence[EpochMark]) -> tuple[Epoch, ...]:
    entries = await asyncio.gather(*(_entry(store, mark.seq) for mark in marks))
    return tuple(
        Epoch(
            epoch=mark.epoch,
            seq=mark.seq,
            resume_at=mark.resume_at,
            began_at_ms=None if entry is None else entry.committed_at_ms,
            writer=None if entry is None else entry.writer.hex(),
        )
        for mark, entry in zip(marks, entries, strict=True)
    )


def _rate(stock: Survey, first: Entry | None, last: Entry | None) -> Rate:
    taken = stock.stored_checkpoints
    between = 0 if first is None or last is None else last.committed_at_ms - first.committed_at_ms
    apart = taken[-1].created_at_ms - taken[0].created_at_ms if taken else 0
    return Rate(
        seconds=max(between, 0) / 1000,
        entries=max(stock.entries.count - 1, 0),
        checkpoint_seconds=max(apart, 0) / 1000,
        checkpoints=max(len(taken) - 1, 0),
        new_chunks=sum(checkpoint.new_chunks for checkpoint in taken[1:]),
    )
