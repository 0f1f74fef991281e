"""A large entry applied in parts, so that it does not hold the event loop up.

SQLite applies a patchset in one call, and Python can do nothing else meanwhile, not even in
another thread.
"""

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import apsw

from taquba.database._body import decode_body, encode_body
from taquba.database._state import NO_ROOM
from taquba.errors import CorruptStore

if TYPE_CHECKING:
    from taquba.database._machine import Machine
    from taquba.journal import Entry

__all__ = ["Gradually", "slices"]

_CHANGES = 250
_BYTES = 256 * 1024


def slices(patchset: bytes) -> Iterator[bytes]:
    """Patchsets that, applied one after another, come to the same as this one.

    Unless rows exchange values of a unique column: such changes only apply together, and may
    end up in different parts.
    """
    builder = apsw.ChangesetBuilder()  # type: ignore[no-untyped-call]
    count = size = 0
    for change in apsw.Changeset.iter(patchset):
        builder.add_change(change)
        count += 1
        if change.opcode != apsw.SQLITE_DELETE and change.new is not None:
            size += sum(len(value) for value in change.new if isinstance(value, (bytes, str)))
        if count == _CHANGES or size >= _BYTES:
            yield builder.output()
            builder.close()
            builder = apsw.ChangesetBuilder()  # type: ignore[no-untyped-call]
            count = size = 0
    if count:
        yield builder.output()
    builder.close()


class Gradually:
    """Applies an entry step by step. Nobody may read before the last one."""

    def __init__(self, machine: Machine, entry: Entry) -> None:
        self._steps = _apply(machine, entry)
        self._error: Exception | None = None

    def step(self) -> bool:
        """Apply a part; whether there is more.

        Raises:
            CorruptStore: The entry does not apply; nothing of it was. Raised again by whoever
                calls this next.
        """
        if self._error is not None:
            raise self._error
        try:
            next(self._steps)
        except StopIteration:
            return False
        except Exception as error:
            self._error = error
            raise
        return True


def _apply(machine: Machine, entry: Entry) -> Iterator[None]:
    statements, patchset = decode_body(f"journal entry {entry.seq}", entry.body)
    if statements:
        machine.apply(entry)
        return
    execute = machine.state.execute
    execute("SAVEPOINT slices")
    try:
        for part in slices(patchset):
            machine.apply(replace(entry, body=encode_body([], part)))
            yield
    except (CorruptStore, apsw.Error):
        execute("ROLLBACK TO slices")
        execute("RELEASE slices")
        # Rows exchange unique values, or it is damaged indeed: then this says so.
        machine.apply(entry)
        return
    try:
        execute("RELEASE slices")  # writes what was not written before
    except NO_ROOM as error:
        raise machine.state.no_room(error) from error
