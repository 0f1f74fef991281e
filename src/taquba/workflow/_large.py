"""Results of runs, and payloads of steps, that are objects: too large to be part of the state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taquba._checks import blob
from taquba.errors import CorruptStore, PayloadMissing
from taquba.queue import MAX_PAYLOAD_SIZE
from taquba.workflow._outcomes import Continue, Outcome, Succeed

if TYPE_CHECKING:
    from taquba.queue import Queue, QueueReader, StoredValue
    from taquba.workflow._records import RunOutcome
    from taquba.workflow._run import Run

__all__ = ["outcome_of_run", "store_large"]


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


async def outcome_of_run(reader: QueueReader, run: Run) -> RunOutcome | None:
    """What an ended run came to; None if that has been forgotten meanwhile.

    Raises:
        PayloadMissing, CorruptStore: The object with its result is gone, or damaged.
        StoreError: It could not be read.
    """
    if run.result_ref is None or run.result is not None:
        return run.outcome()
    try:
        result = await reader.fetch_value(run.result_ref)
    except (PayloadMissing, CorruptStore) as error:
        source = reader._source
        await source.catch_up()
        await source.enter()
        if not source.rows("SELECT 1 FROM runs WHERE life = ?", (run.life,)):
            return None
        text = f"the result of the run is lost: {error}"
        if isinstance(error, CorruptStore):
            raise CorruptStore(text, key=error.key) from error
        raise PayloadMissing(text) from error
    return replace(run, result=result).outcome()
