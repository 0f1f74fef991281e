"""The calls of a runtime that are about signals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from taquba.workflow._signal import Signalled, SignalMode, check_signal_key, new_signal
from taquba.workflow._signal_effect import PreparedSignal

if TYPE_CHECKING:
    from taquba.queue import Queue
    from taquba.workflow._runs import RunTable

__all__ = ["Signalling"]


class Signalling(ABC):
    """Sends signals."""

    _queue: Queue

    async def signal(
        self,
        key: str,
        payload: bytes = b"",
        *,
        signal_id: str | None = None,
        mode: SignalMode = "latest",
    ) -> Signalled:
        """Give a payload to the run that waits for it with ``Continue(signal=key)``.

        If none does, it is buffered for the next run that waits. When this returns, it
        survives any crash, and exactly one run receives it, unless it is replaced or cleared
        before one waits.

        Args:
            key: Any text of at most 1,024 bytes of UTF-8; it belongs to this runtime's queue name.
            payload: At most 256 KiB; the run sees it as `Step.signal`.
            signal_id: Sending again with the same id and key changes nothing, and tells what became
                of the first. It is remembered for 7 days, and as long as it is buffered.
            mode: What happens if it is buffered. ``"latest"``: it replaces the one before that was
                sent so, and the answer says what that was. ``"queue"``: all are kept, up to 1,000
                for each key, and each run that waits receives the next, in order.

        Raises:
            InputMismatch: One with another payload was sent with this id; nothing was written.
            SignalQueueFull: 1,000 are buffered under this key; nothing was written.
            InvalidArgument: Something of the above is wrong; nothing was written.
            Fenced: Another process took the store over.
        """
        signals = self._opened().signals
        signal = new_signal(key, payload, signal_id, mode)
        async with self._queue.committing() as tx:
            return signals.send(tx, signal)

    def prepared_signal(
        self,
        key: str,
        payload: bytes = b"",
        *,
        signal_id: str | None = None,
        mode: SignalMode = "latest",
    ) -> PreparedSignal:
        """A signal that is sent together with something else.

        Give it to `Effects.add`, and those effects to whatever commits them: the settlement of a
        job, an enqueue, a submission, or `Queue.commit`. The arguments are those of `signal`.

        Raises:
            InvalidArgument: Something of the arguments is wrong.
        """
        return PreparedSignal(self._opened(), new_signal(key, payload, signal_id, mode))

    async def clear_signal(self, key: str) -> int:
        """Remove the signals that are buffered under a key; how many there were.

        What a run was given already stays with it.

        Raises:
            Fenced: Another process took the store over.
        """
        signals = self._opened().signals
        checked = check_signal_key(key)
        async with self._queue.committing() as tx:
            return signals.clear(tx, checked)

    @abstractmethod
    def _opened(self) -> RunTable:
        """The runs, if the runtime is entered."""
