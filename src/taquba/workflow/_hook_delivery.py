"""One delivery of a notification: call the terminal hook, and decide how it is settled."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING

from taquba.errors import InvalidType
from taquba.logs import about
from taquba.queue import Claim, FailedSettlement, Settlement, failure_of
from taquba.workflow._delivery import PERMANENT
from taquba.workflow._hooks import Hook, outcome_of
from taquba.workflow._submitting import RunEffects

if TYPE_CHECKING:
    from taquba.queue import Queue
    from taquba.workflow._runs import RunTable

__all__ = ["HookDelivery"]

logger = logging.getLogger("taquba.workflow")


class HookDelivery:
    """Delivers notifications to a terminal hook.

    What it stages is committed in the transaction that ends the notification, or dropped.
    """

    def __init__(self, queue: Queue, runs: RunTable, hook: Hook) -> None:
        self._queue = queue
        self._runs = runs
        self._hook = hook

    async def deliver(self, claim: Claim) -> Settlement:
        """Tell the hook, and say how to settle the claim."""
        try:
            outcome = outcome_of(await self._payload(claim), claim.job.enqueued_at)
        except (ValueError, TypeError) as error:
            logger.error("job %s tells of no run: %s", claim.job.id, error, extra=about(claim.job))
            text = f"the notification cannot be read: {error}"
            return lambda tx: tx.dead_letter(claim, text)
        effects = RunEffects(self._runs)
        try:
            # By now this may be another hook than the one that was there when the run ended.
            if self._hook.observes(outcome):
                try:
                    _check_answer(await self._hook.call(outcome, effects))
                finally:
                    effects._seal()
                self._runs.check_effects(effects)
            return await self._queue.prepare(lambda tx: tx.ack(claim, effects), effects)
        except Exception as error:
            return self.failed(claim, error)

    async def _payload(self, claim: Claim) -> bytes:
        if claim.job.payload_fetched:
            return claim.job.payload
        # With the largest of results it is more than jobs are delivered with.
        return b"".join([part async for part in self._queue.stream_payload(claim)])

    def failed(self, claim: Claim, error: BaseException) -> Settlement:
        """Settle a delivery that failed, or whose settlement was refused."""
        permanent = isinstance(error, PERMANENT)
        failure = failure_of(error)
        final = permanent or claim.job.is_last_attempt
        if self._queue.failure is None:
            logger.warning(
                "the terminal hook failed on attempt %d of %d%s: %s",
                claim.job.attempts,
                claim.job.max_attempts,
                ", and its notification is dead" if final else "",
                failure.text,
                exc_info=None if permanent else error,
                extra=about(claim.job),
            )
        if permanent:
            return FailedSettlement(lambda tx: tx.dead_letter(claim, failure), error)
        return FailedSettlement(lambda tx: tx.nack(claim, failure), error)


def _check_answer(answer: object) -> None:
    """Refuse what was not awaited; whatever else a hook returns is of no consequence.

    Raises:
        InvalidType: It is a coroutine.
    """
    if inspect.iscoroutine(answer):
        answer.close()
        raise InvalidType(
            "the terminal hook returned a coroutine: declare it with 'async def', or await it"
        )
