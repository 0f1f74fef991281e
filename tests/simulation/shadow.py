"""A store that forgets nothing, and the whole history that its journal adds up to.

Collection deletes what no checkpoint needs; here a copy of every journal entry, checkpoint and
chunk is kept, so that a world that is over can be replayed from its first entry, and whatever
was seen of it meanwhile compared. The replay works on dicts and shares with the library only
how an entry is decoded and which entry may follow which.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import apsw

from taquba.database._body import decode_body
from taquba.database._chunks import Contents
from taquba.database._schema import SchemaModule
from taquba.errors import TaqubaError
from taquba.journal import START, Checkpoint, Kind, Position
from taquba.journal._checkpoint import CHECKPOINT_PREFIX, decode_checkpoint
from taquba.journal._entry import decode_entry
from taquba.journal._position import advance, entry_key, seq_of_key
from taquba.objectstore import MemoryStore
from taquba.queue._schema import QUEUE_SCHEMA

CHUNKS = "chunks/"

Row = tuple[Any, ...]
Table = dict[tuple[Any, ...], Row]
"""Rows by primary key."""
Tables = dict[str, Table]


def columns_of(schema: SchemaModule, *tables: str) -> dict[str, dict[str, int]]:
    """By table, the place of each column."""
    scratch = apsw.Connection(":memory:")
    for statement in schema.statements:
        scratch.execute(statement)
    return {
        table: {row[1]: row[0] for row in scratch.execute(f"PRAGMA table_info({table})")}
        for table in tables
    }


COLUMNS = columns_of(QUEUE_SCHEMA, "jobs", "queues", "kv")
"""By table, the place of each column."""


class Landed(NamedTuple):
    """A journal entry, when it first was in the store."""

    at: float
    data: bytes


class Published(NamedTuple):
    """A checkpoint, when its manifest was in the store."""

    at: float
    checkpoint: Checkpoint


class ShadowStore(MemoryStore):
    """Keeps a copy of all that was ever stored, and looks at what is deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[int, Landed] = {}
        """By seq, what came first; a later one at the same place is a stray that never counts."""
        self.chunks: dict[str, bytes] = {}
        self.published: list[Published] = []
        self.deleted: list[tuple[int, bytes]] = []
        """Seqs and bytes of journal entries that were deleted."""
        self.missing_chunks: list[str] = []
        """What the newest checkpoint lacked, at any time."""
        self.counts: dict[str, int] = {}
        self._newest: tuple[str, frozenset[str]] = ("", frozenset())
        self.epoch = 0
        """The newest that is in the store."""

    def _count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data)
        self._note(key, data)

    async def put(self, key: str, data: bytes) -> None:
        await super().put(key, data)
        self._note(key, data)

    async def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        gone = {key: self._objects[key] for key in doomed if key in self._objects}
        await super().delete(doomed)
        for key, data in gone.items():
            seq = seq_of_key(key)
            if seq is not None:
                self.deleted.append((seq, data))
                self._count("entries collected")
            elif key.startswith(CHUNKS):
                self._count("chunks collected")
            elif key == self._newest[0]:
                self._look_for_newest()
        self._look_at_newest()

    def _note(self, key: str, data: bytes) -> None:
        now = asyncio.get_running_loop().time()
        seq = seq_of_key(key)
        if seq is not None:
            self.entries.setdefault(seq, Landed(now, data))
            epoch = decode_entry(key, data).epoch
            if epoch < self.epoch:
                self._count("late writes")
            self.epoch = max(self.epoch, epoch)
        elif key.startswith(CHUNKS):
            self.chunks[key] = data
        elif key.startswith(CHECKPOINT_PREFIX):
            self.published.append(Published(now, decode_checkpoint(key, data)))
            self._count("checkpoints")
            self._look_for_newest()
            self._look_at_newest()

    def _look_for_newest(self) -> None:
        keys = [key for key in self._objects if key.startswith(CHECKPOINT_PREFIX)]
        self._newest = ("", frozenset())
        if keys:
            key = max(keys)
            content = decode_checkpoint(key, self._objects[key]).content
            self._newest = (key, frozenset(Contents.from_json(key, content).chunk_keys()))

    def _look_at_newest(self) -> None:
        key, needed = self._newest
        missing = sorted(chunk for chunk in needed if chunk not in self._objects)
        if missing and not self.missing_chunks:
            self.missing_chunks = [f"{key} lacks {chunk}" for chunk in missing]


class Change(NamedTuple):
    """What one entry made of one row."""

    table: str
    key: tuple[Any, ...]
    before: Row | None
    after: Row | None


@dataclass
class Step:
    """One entry of the log, and what it changed."""

    seq: int
    epoch: int
    landed_at: float
    changes: list[Change]


@dataclass
class History:
    """The log from its first entry to its tail."""

    steps: list[Step] = field(default_factory=list[Step])
    positions: dict[int, Position] = field(default_factory=dict[int, Position])
    """By seq, each place that the log came through."""
    states: dict[int, Tables] = field(default_factory=dict[int, Tables])
    """By seq, the content at each place that was asked for."""
    tail: Position = START
    trouble: list[str] = field(default_factory=list[str])
    """What does not fit together."""


def replay_all(entries: dict[int, Landed], wanted: set[int]) -> History:
    """The history of these entries, with its states at the seqs in `wanted`."""
    history = History()
    tables: Tables = {"schema_modules": {}}
    position = START
    while True:
        history.positions[position.seq] = position
        if position.seq in wanted:
            history.states[position.seq] = {name: dict(rows) for name, rows in tables.items()}
        landed = entries.get(position.seq)
        if landed is None:
            break
        key = entry_key(position.seq)
        try:
            entry = decode_entry(key, landed.data)
            after = advance(position, entry)
        except TaqubaError as error:
            history.trouble.append(f"the log breaks: {error}")
            break
        if entry.kind is Kind.ORDINARY:
            _, patchset = decode_body(key, entry.body)
            changes = list(_apply(tables, patchset, key, history.trouble))
            history.steps.append(Step(entry.seq, entry.epoch, landed.at, changes))
        position = after
    history.tail = position
    return history


def _apply(tables: Tables, patchset: bytes, name: str, trouble: list[str]) -> Iterator[Change]:
    for change in apsw.Changeset.iter(patchset) if patchset else ():
        rows = tables.setdefault(change.name, {})
        values: Any = change.old if change.op == "DELETE" else change.new
        old: Any = change.old
        places = sorted(change.pk_columns)
        key = tuple((old if change.op == "UPDATE" else values)[place] for place in places)
        before = rows.get(key)
        if (before is None) != (change.op == "INSERT"):
            trouble.append(f"{name}: {change.op} of {change.name} {key}, where {before} is")
            continue
        if change.op == "DELETE":
            after = None
            del rows[key]
        else:
            after = tuple(
                before[place] if value is apsw.no_change and before is not None else value
                for place, value in enumerate(values)
            )
            rows[key] = after
        yield Change(change.name, key, before, after)


def content_of(connection: apsw.Connection) -> Tables:
    """All rows of all tables of a real database."""
    tables: Tables = {}
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (name,) in names:
        if str(name).startswith("sqlite_"):
            continue
        columns = connection.execute(f'PRAGMA table_info("{name}")').fetchall()
        places = [column[0] for column in columns if column[5]]
        rows: list[Row] = connection.execute(f'SELECT * FROM "{name}"').fetchall()
        tables[str(name)] = {tuple(row[place] for place in places): row for row in rows}
    return tables


def difference(found: Tables, expected: Tables) -> str:
    """The first thing in which two contents differ, or nothing."""
    for name in sorted(set(found) | set(expected)):
        ours, theirs = found.get(name, {}), expected.get(name, {})
        if ours != theirs:
            keys = sorted((set(ours) | set(theirs)), key=repr)
            key = next(key for key in keys if ours.get(key) != theirs.get(key))
            return f"{name} {key}: found {ours.get(key)}, expected {theirs.get(key)}"
    return ""
