"""What the journal asks of whoever keeps state in it."""

from __future__ import annotations

from typing import Protocol

from taquba.errors import TaqubaError
from taquba.journal._checkpoint import Checkpoint
from taquba.journal._entry import Entry
from taquba.journal._position import Position

__all__ = ["StateMachine"]


class StateMachine(Protocol):
    """State that is a pure function of the journal."""

    async def restore(self, checkpoint: Checkpoint | None) -> None:
        """Forget everything and load this checkpoint; `None` is the empty state.

        May be called several times while a journal opens. If a part of the checkpoint is
        gone, raise `CorruptStore`: the journal looks whether a newer one replaced it.
        """
        ...

    def apply(self, entry: Entry) -> None:
        """Apply one ordinary entry. Called in order, while a journal opens."""
        ...

    def check(self, metadata: bytes) -> None:
        """Look at the metadata of a writer that came before.

        Raises:
            IncompatibleStore: A newer version wrote it; opening stops, nothing is written.
        """
        ...

    def seal(self, seq: int) -> bytes | None:
        """The body of entry `seq`: everything since the last seal. `None`: nothing changed."""
        ...

    def sealed(self, position: Position) -> None:
        """Called right after `seal` made an entry: the state now is exactly `position`."""
        ...

    def failed(self, error: TaqubaError) -> None:
        """The journal stopped by itself: nothing is acknowledged any more."""
        ...
