"""Fetching the payloads of claimed jobs, between the claim and its holder."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from taquba.errors import CorruptStore, PayloadMissing
from taquba.logs import about
from taquba.queue._columns import ATTEMPTS, PAYLOAD_REF, SEQ
from taquba.queue._config import MAX_PAYLOAD_SIZE
from taquba.queue._payload_objects import PayloadRef
from taquba.queue._records import Job
from taquba.queue._transaction import QueueTransaction

if TYPE_CHECKING:
    from taquba.queue._core import Core
    from taquba.queue._records import Claim

__all__ = ["deliver", "fetch_payload"]

logger = logging.getLogger("taquba.queue")

_LEAST_DELAY_MS = 1000
_FETCHES = 8
"""Payloads that one call fetches at the same time."""


async def deliver(core: Core, claims: list[Claim]) -> list[Claim]:
    """Those of the claims whose payloads could be fetched; their leases begin now.

    Raises:
        PayloadMissing, CorruptStore, StoreError: None could.
    """
    stored = [claim for claim in claims if claim.job._row[PAYLOAD_REF] is not None]
    if not stored:
        return claims
    for claim in stored:
        claim._lease.suspend()
    limit = asyncio.Semaphore(_FETCHES)
    errors: dict[int, Exception] = {}

    async def fetch(claim: Claim) -> None:
        async with limit:
            error = await fetch_payload(core, claim)
            if error is not None:
                errors[id(claim)] = error

    tasks = [asyncio.ensure_future(fetch(claim)) for claim in stored]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for claim in stored:
            claim._lease.start()
    if len(errors) == len(claims):
        raise next(iter(errors.values()))
    return [claim for claim in claims if id(claim) not in errors]


async def fetch_payload(core: Core, claim: Claim) -> Exception | None:
    """Complete a claimed job whose payload is an object; its lease runs from then on.

    If that fails, the job is not in the claimant's hands any more, and the error says why.
    """
    ref = PayloadRef.parse(claim.job._row[PAYLOAD_REF])
    if ref.size > MAX_PAYLOAD_SIZE or not claim.is_live:
        return None
    claim._lease.suspend()
    try:
        data = await core.payloads.fetch(ref)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        if claim.is_live and core.database.stopped is None:
            _take_back(core, claim, error)
        return error
    finally:
        claim._lease.start()
    claim.job = claim.job._with_payload(data)
    return None


def _take_back(core: Core, claim: Claim, error: Exception) -> None:
    """This job's payload could not be fetched: try later, or give it up if that is no use."""
    text = f"payload not delivered: {error}"
    job = claim.job
    with QueueTransaction(core) as tx:
        if isinstance(error, (PayloadMissing, CorruptStore)):
            logger.warning(
                "job %s on queue %s is dead: %s", job.id, job.queue, error, extra=about(job)
            )
            tx.dead_letter(claim, text)
            hook = core.lane(job.queue).dead_letter_hook
            if hook is not None:
                hook(tx, Job(tuple(tx._get(job._row[SEQ]) or ()), job.queue))
        else:
            logger.warning(
                "job %s on queue %s is postponed: %s", job.id, job.queue, error, extra=about(job)
            )
            policy = job.retry or core.lane(job.queue).retry
            backoff = policy.delay_ms(job._row[ATTEMPTS], core.clock.random())
            tx.postpone(claim, text, max(backoff, _LEAST_DELAY_MS))
