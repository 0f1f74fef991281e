"""What happens when leases expire."""

from __future__ import annotations

from typing import Any

from taquba.logs import fields
from taquba.metrics import LEASES_EXPIRED
from taquba.queue._core import Core, logger
from taquba.queue._failure import OVERDUE, TIMED_OUT
from taquba.queue._leases import Lease
from taquba.queue._transaction import QueueTransaction

__all__ = ["handler_ended", "reap_due"]


def reap_due(core: Core) -> int:
    """End every lease that has expired; how many.

    A job that somebody works on stays claimed until they have stopped, or have had their
    grace for that; the others go back to their queues at once.
    """
    leases = core.leases
    due = leases.due(core.clock.monotonic())
    if not due:
        return 0
    held = [(lease, lease.holder) for lease in due if lease.live]
    free = [lease for lease, holder in held if holder is None]
    late = [lease for lease in due if not lease.live]
    known = {id(lease): _known(core, lease) for lease in due}
    if core.observer is not None:
        for lease, _ in held:
            core.observer.count(LEASES_EXPIRED, lease.queue_number)
    if free or late:
        _take_back(core, [*free, *late])
    for lease in free:
        about = known[id(lease)]
        logger.warning(
            "the lease on job %s expired; it is taken back", about["taquba_job_id"], extra=about
        )
    for lease in late:
        about = known[id(lease)]
        logger.warning(
            "the handler of job %s did not stop when it was cancelled; its job is taken back "
            "all the same, and may be worked on twice at once",
            about["taquba_job_id"],
            extra=about,
        )
    for lease, holder in held:
        if holder is not None:
            leases.expire(lease, holder)
            about = known[id(lease)]
            logger.warning(
                "job %s %s; its handler is cancelled",
                about["taquba_job_id"],
                "took too long" if lease.timed_out else "was not settled before its lease expired",
                extra=about,
            )
            holder.cancel()
    return len(due)


def _known(core: Core, lease: Lease) -> dict[str, Any]:
    """What log records about the job of this lease tell of it."""
    row = core.database.execute("SELECT id, attempts FROM jobs WHERE seq = ?", (lease.seq,))
    job_id, attempts = row.fetchone() or ("?", 0)
    return fields(job_id, core.lanes_by_number[lease.queue_number].name, attempts)


def handler_ended(core: Core, lease: Lease) -> None:
    """The holder of a lease that expired has stopped: its job can be delivered again."""
    if core.database.stopped is None and core.leases.overdue.get(lease.seq) is lease:
        _take_back(core, [lease])


def _take_back(core: Core, leases: list[Lease]) -> None:
    with QueueTransaction(core) as tx:
        for lease in leases:
            if lease.timed_out:
                tx.take_back(lease, TIMED_OUT, timed_out=True)
            else:
                tx.take_back(lease, OVERDUE)
