"""Signals that are sent together with something else, in the same transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from taquba.errors import InvalidArgument, InvalidState
from taquba.workflow._signal import NewSignal, Signalled

if TYPE_CHECKING:
    from taquba.queue import NewJob, QueueTransaction
    from taquba.workflow._runs import RunTable

__all__ = ["PreparedSignal"]


@final
class PreparedSignal:
    """A signal that is to be sent with something else, in the same transaction.

    Made by `WorkflowRuntime.prepared_signal`; give it to `Effects.add`. When it is committed, it
    does what `WorkflowRuntime.signal` does.
    """

    __slots__ = ("_runs", "_signal")

    def __init__(self, runs: RunTable | None, signal: NewSignal) -> None:
        """Not for callers: use `WorkflowRuntime.prepared_signal`."""
        self._runs = runs
        self._signal = signal

    @property
    def key(self) -> str:
        """The signal's key."""
        return self._signal.key

    @property
    def payload(self) -> bytes:
        """What the run that waits is given."""
        return self._signal.payload

    @property
    def jobs(self) -> Sequence[NewJob]:
        """None: a signal is no job."""
        return ()

    def apply(self, tx: QueueTransaction) -> Signalled:
        """Send it in this transaction.

        Raises:
            InputMismatch: One with another payload was sent with its id.
            SignalQueueFull: As many as may be are buffered under its key.
            InvalidArgument: The transaction is of another store.
        """
        runs = self._runs
        if runs is None:
            raise InvalidState("this signal was sent by a detached step, and is never committed")
        if not runs.queue.owns(tx):
            raise InvalidArgument(
                f"signal {self.key!r} is sent in another store than the one that commits: prepare "
                "it with a runtime of the queue that the effects are passed to"
            )
        return runs.signals.send(tx, self._signal)

    def __repr__(self) -> str:
        return f"PreparedSignal(key={self.key!r}, payload=<{len(self.payload)} bytes>)"
