"""Results of runs, and payloads of steps, that are objects: too large to be part of the state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taquba._checks import blob
from taquba.errors import CorruptStore, PayloadMissing
from taquba.queue import MAX_PAYLOAD_SIZE
from taquba.workflow._outcomes import Continue, Outcome, Succeed

if TYPE_CHECKING:
    from taquba.queue import Queue, StoredValue
    from taquba.workflow._runs import RunTable

__all__ = ["fetch_result", "store_large"]


async def store_large(queue: Queue, outcome: Outcome) -> StoredValue | None:
    """Store what an outcome carries, if that is to be an object; it is checked before.

    Raises:
        ValueTooLarge: It is too long.
        StoreError: It could not be stored.
    """
    if isinstance(outcome, Continue):
        data, name = outcome.payload, "the payload of Continue"
    elif isinstance(outcome, Succeed) and outcome.result is not None:
        data, name = outcome.result, "the result of Succeed"
    else:
        return None
    if not isinstance(data, (bytes, bytearray)) or len(data) <= queue.offloads_above:
        return None
    return await queue.store_value(blob(data, name=name, limit=MAX_PAYLOAD_SIZE))


async def fetch_result(queue: Queue, runs: RunTable, life: int, ref: str) -> bytes | None:
    """The result that is this object; None if that life has been forgotten meanwhile.

    Raises:
        PayloadMissing, CorruptStore: The object is gone, or damaged.
        StoreError: It could not be read.
    """
    try:
        return await queue.fetch_value(ref)
    except (PayloadMissing, CorruptStore) as error:
        if not runs.has_life(life):
            return None
        text = f"the result of the run is lost: {error}"
        if isinstance(error, CorruptStore):
            raise CorruptStore(text, key=error.key) from error
        raise PayloadMissing(text) from error
