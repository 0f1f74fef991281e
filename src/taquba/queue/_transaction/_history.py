"""What is noted of the attempts of a job, and how a job's row goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taquba.queue._columns import ATTEMPTS, CLAIMED_AT, HISTORY, SEQ
from taquba.queue._config import MAX_HISTORY
from taquba.queue._records import AttemptOutcome
from taquba.queue._transaction._base import TransactionBase

__all__ = ["Recording"]


class Recording(TransactionBase):
    """Notes how attempts ended, for as long as their job can be found."""

    __slots__ = ()

    def _note(self, row: Sequence[Any], outcome: AttemptOutcome, error: str | None = None) -> int:
        """Note the end of a job's attempt; what goes into the job's column `history`."""
        number: int = row[HISTORY] or 0
        requeued = outcome is AttemptOutcome.REQUEUED
        self.execute(
            "INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                row[SEQ],
                number,
                0 if requeued else row[ATTEMPTS],
                None if requeued else row[CLAIMED_AT],
                self._now_ms,
                int(outcome),
                error,
            ),
        )
        if number >= MAX_HISTORY:
            self.execute(
                "DELETE FROM attempts WHERE seq = ? AND number = ?",
                (row[SEQ], number - MAX_HISTORY),
            )
        return number + 1

    def _removed(self, seq: int, history: int | None, payload_ref: str | None) -> None:
        """A job's row is gone: so is what belonged to it."""
        if history is not None:
            self.execute("DELETE FROM attempts WHERE seq = ?", (seq,))
        if payload_ref is not None:
            self.forget_value(payload_ref)
