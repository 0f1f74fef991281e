"""Every change of the queue's state, as synchronous calls inside one transaction."""

from __future__ import annotations

from typing import final

from taquba.queue._core import Core
from taquba.queue._failure import GONE
from taquba.queue._leases import Lease
from taquba.queue._records import AttemptOutcome
from taquba.queue._transaction._unclaimed import Unclaimed

__all__ = ["QueueTransaction", "recover"]


@final
class QueueTransaction(Unclaimed):
    """A set of changes that are committed together, or not at all.

    Made by `Queue.transaction()`. The body of the ``with`` block is synchronous; leaving it
    by an exception rolls everything back. Leaving it normally applies the changes in this
    process at once; they are durable when `durable()` returns.

    Example:
        >>> with queue.transaction() as tx:                          # doctest: +SKIP
        ...     tx.ack(claim)
        ...     tx.enqueue(new_job("mail", b"receipt"))
        >>> await tx.durable()                                       # doctest: +SKIP
    """

    __slots__ = ()


def recover(core: Core) -> int:
    """Take back every claim that an earlier process left behind; how many there were.

    Their leases were in that process's memory and are void, however much was left.
    """
    rows = core.database.execute("SELECT seq, queue FROM jobs WHERE state = 2").fetchall()
    found = 0
    with QueueTransaction(core) as tx:
        for seq, number in rows:
            lease = Lease(seq, number, 0.0, core.leases)
            tx.take_back(lease, GONE, AttemptOutcome.INTERRUPTED)
            found += 1
    return found
