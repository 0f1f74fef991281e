"""Calls about jobs that nobody holds."""

from __future__ import annotations

from taquba.queue import _validate
from taquba.queue._calls import Calls, check_effects
from taquba.queue._effects import Effects
from taquba.queue._records import Cancelled

__all__ = ["Managing"]


class Managing(Calls):
    """Moves and removes jobs."""

    async def cancel(self, job_id: str, effects: Effects | None = None) -> Cancelled:
        """Remove a waiting job, or ask the worker that has it to stop.

        A worker that has the job learns it from `Claim.cancel_token`; it may still settle
        the job in any way. Effects are applied only if the job was removed.

        Raises:
            Fenced: Another process took the store over.
        """
        checked = _validate.job_id(job_id)
        check_effects(effects)
        async with self._committing(effects) as tx:
            return tx.cancel(checked, effects)

    async def requeue_dead(self, job_id: str) -> None:
        """Give a dead job a fresh start: all its attempts, at its old place in the queue.

        Raises:
            JobNotFound: There is no such job.
            InvalidState: The job is not dead.
            Fenced: Another process took the store over.
        """
        checked = _validate.job_id(job_id)
        async with self._committing() as tx:
            tx.requeue_dead(checked)
