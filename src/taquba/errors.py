"""Every error that taquba raises, in one tree.

::

    TaqubaError
    ├── StoreError                 the object store failed, or refuses
    │   ├── ObjectNotFound         no object under this key
    │   ├── ObjectExists           create-if-absent found another object
    │   ├── StoreUnavailable       throttled, unreachable, timed out: trying again may help
    │   ├── StoreAccessDenied      credentials are missing, wrong or expired
    │   ├── BucketNotFound         the bucket, container or folder does not exist
    │   └── UnsafeStore            its create-if-absent cannot be trusted
    ├── Fenced                     another process took the store over
    ├── Closed                     you closed it (or its owner failed) and went on using it
    ├── CorruptStore               stored data is damaged; taquba stops instead of guessing
    ├── PayloadMissing             the object with a job's payload is gone
    ├── HistoryNotKept             a moment of the past from which nothing is left
    ├── StateFull                  memory or scratch disk has no room for the state
    ├── IncompatibleStore          written by a newer taquba
    ├── CommitUnknown              gave up waiting; the commit may still happen
    ├── InvalidArgument            bad input, refused before anything was written
    │   ├── InvalidType            an argument of the wrong type
    │   ├── InvalidUrl
    │   ├── InvalidQueueName, InvalidJobId, InvalidRunId
    │   ├── ValueTooLarge
    │   ├── ConflictingEffects     one effect set both writes and deletes a key
    │   ├── UnknownWorkflow        nobody here runs that workflow or revision
    │   ├── DuplicateMemberKey     two members of one group have the same key
    │   └── ReservedName           a key or header that belongs to taquba itself
    ├── ClaimLost                  the claim ended: settled, expired, or given to somebody else
    ├── CancelRequested            a lease is not extended: cancellation was asked for
    ├── QueueFull                  a queue has as many jobs waiting as it may
    ├── DuplicateJobId, JobNotFound, InvalidState
    ├── InputMismatch              a run or signal id was used again with another input
    ├── SignalTaken                another run waits for the signal already
    ├── SignalQueueFull            as many signals are buffered under one key as may be
    ├── RunNotFound, InconsistentRunState
    ├── GroupNotFound              no run group has this id
    ├── GroupMismatch              a group was submitted again with other members
    ├── GroupIncomplete            a group's submission was broken off
    ├── GroupActive                a group with unfinished members cannot be forgotten
    ├── GroupStopped               a group was cancelled, or had too many failures
    ├── RunFailed, JobFailed       what was asked for its result did not succeed
    ├── EffectsSealed              staged after the step returned
    ├── SerializationError         a value cannot be encoded, or a stored one not decoded
    ├── InvalidSignature           a webhook that was received is not to be trusted
    ├── MissingDependency          an extra is not installed
    ├── TransientError             raise it in a handler: try again, with backoff
    └── PermanentError             raise it in a handler: do not try again

"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

__all__ = [
    "BucketNotFound",
    "CancelRequested",
    "ClaimLost",
    "Closed",
    "CommitUnknown",
    "ConflictingEffects",
    "CorruptStore",
    "DuplicateJobId",
    "DuplicateMemberKey",
    "EffectsSealed",
    "Fenced",
    "GroupActive",
    "GroupIncomplete",
    "GroupMismatch",
    "GroupNotFound",
    "GroupStopped",
    "HistoryNotKept",
    "IncompatibleStore",
    "InconsistentRunState",
    "InputMismatch",
    "InvalidArgument",
    "InvalidJobId",
    "InvalidQueueName",
    "InvalidRunId",
    "InvalidSignature",
    "InvalidState",
    "InvalidType",
    "InvalidUrl",
    "JobFailed",
    "JobNotFound",
    "MissingDependency",
    "ObjectExists",
    "ObjectNotFound",
    "PayloadMissing",
    "PermanentError",
    "QueueFull",
    "ReservedName",
    "RunFailed",
    "RunNotFound",
    "SerializationError",
    "SignalQueueFull",
    "SignalTaken",
    "StateFull",
    "StoreAccessDenied",
    "StoreError",
    "StoreUnavailable",
    "TaqubaError",
    "TransientError",
    "UnknownWorkflow",
    "UnsafeStore",
    "ValueTooLarge",
]


class TaqubaError(Exception):
    """Root of everything that taquba raises."""


class StoreError(TaqubaError):
    """The object store failed, or refuses.

    Attributes:
        operation: What was tried: ``"get"``, ``"create"``, ``"list"`` …, or ``""``.
        key: The object's key (or the prefix of a listing), or ``""``.
    """

    def __init__(self, message: str, *, operation: str = "", key: str = "") -> None:
        super().__init__(message)
        self.operation = operation
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_store_error, (type(self), str(self), self.operation, self.key)


def _rebuild_store_error(
    kind: type[StoreError], message: str, operation: str, key: str
) -> StoreError:
    return kind(message, operation=operation, key=key)


class ObjectNotFound(StoreError):
    """No object under this key."""


class ObjectExists(StoreError):
    """Create-if-absent found another object under the key."""


class StoreUnavailable(StoreError):
    """Throttled, unreachable, or timed out: trying again may help.

    A write that ended like this may have happened.
    """


class StoreAccessDenied(StoreError):
    """Credentials are missing, wrong or expired, or do not allow this operation."""


class BucketNotFound(StoreError):
    """The bucket, container or folder does not exist."""


class UnsafeStore(StoreError):
    """The store's create-if-absent cannot be trusted, so its data would not be safe."""


class Fenced(TaqubaError):
    """Another process took the store over; this one must stop using it.

    Nothing more is acknowledged. What was acknowledged before is safe, and the new
    owner has it. Close this queue; if this process should own the store again, open
    it again (that fences the other one).
    """


class Closed(TaqubaError):
    """The queue, database or journal was closed, or stopped after a failure."""


class CorruptStore(TaqubaError):
    """Stored data is damaged. Taquba stops instead of guessing; nothing was changed.

    Attributes:
        key: The object's key, if the damage is that of a single object; else ``""``.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_corrupt_store, (str(self), self.key)


def _rebuild_corrupt_store(message: str, key: str) -> CorruptStore:
    return CorruptStore(message, key=key)


class PayloadMissing(TaqubaError):
    """The object that holds a job's payload is gone; something other than taquba deleted it, or
    this process is not the store's owner any more, and does not know yet.

    Restore it from a backup or an older object version, and requeue the job.
    """


class StateFull(TaqubaError):
    """There is no room for the state here: the scratch disk or the memory is full.

    Nothing that was acknowledged is lost. If it happened while the store was open, it is not
    open any more: make room, and open it again.
    """


class HistoryNotKept(TaqubaError):
    """The state as of that moment cannot be rebuilt: what it needs was collected.

    Attributes:
        earliest: The first moment that can be rebuilt, if it is known.
    """

    def __init__(self, message: str, earliest: datetime | None = None) -> None:
        super().__init__(message)
        self.earliest = earliest

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.earliest)


class IncompatibleStore(TaqubaError):
    """The store was written by a newer taquba. Upgrade this process; nothing was changed."""


class CommitUnknown(TaqubaError):
    """Waiting for a commit was given up; it may still happen. Open the store again to learn."""


class InvalidArgument(TaqubaError, ValueError):
    """Bad input, refused at the call, before anything was written."""


class InvalidType(InvalidArgument, TypeError):
    """An argument of the wrong type, refused at the call."""


class InvalidUrl(InvalidArgument):
    """Not a URL (or path) that taquba can open."""


class InvalidQueueName(InvalidArgument):
    """A queue name is 1 to 255 bytes of UTF-8."""


class InvalidJobId(InvalidArgument):
    """A job id is 1 to 128 characters of ``A-Z a-z 0-9 _ -``."""


class InvalidRunId(InvalidArgument):
    """A run id is 1 to 128 characters of ``A-Z a-z 0-9 _ -``."""


class ValueTooLarge(InvalidArgument):
    """A payload, value or key is over its documented limit."""


class ConflictingEffects(InvalidArgument):
    """One effect set both writes and deletes the same key."""


class ReservedName(InvalidArgument):
    """A key, header or queue that belongs to taquba itself."""


class UnknownWorkflow(InvalidArgument):
    """No runtime of this process runs the workflow that a run was to be submitted for."""


class DuplicateMemberKey(InvalidArgument):
    """Two members of one group have the same key."""


class ClaimLost(TaqubaError):
    """The claim ended before: settled, expired, or the job was given to somebody else.

    Nothing of the refused settlement was applied.
    """


class CancelRequested(TaqubaError):
    """A lease is not extended, since cancellation was asked for. The claim can still settle."""


class QueueFull(TaqubaError):
    """A queue has as many jobs waiting as its `max_depth` lets it have. Nothing was written.

    Try again when some are done, add workers, or raise the limit.

    Attributes:
        queue: Name of the queue.
        depth: Jobs that are pending or scheduled on it.
        limit: How many may be.
    """

    def __init__(self, message: str, *, queue: str = "", depth: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.queue = queue
        self.depth = depth
        self.limit = limit

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_queue_full, (str(self), self.queue, self.depth, self.limit)


def _rebuild_queue_full(message: str, queue: str, depth: int, limit: int) -> QueueFull:
    return QueueFull(message, queue=queue, depth=depth, limit=limit)


class DuplicateJobId(TaqubaError):
    """A job with this id exists already."""


class JobNotFound(TaqubaError):
    """No job has this id."""


class InvalidState(TaqubaError):
    """The job is not in a state in which this is possible."""


class InputMismatch(TaqubaError):
    """An active run with this id was submitted with another input, or another signal was sent with
    this id. Nothing was written.
    """


class SignalTaken(TaqubaError):
    """A run cannot wait for a signal, since another one does: it fails with this."""


class SignalQueueFull(TaqubaError):
    """As many signals are buffered under one key as may be. Nothing was written."""


class RunNotFound(TaqubaError):
    """No run has this id."""


class RunFailed(TaqubaError):
    """A run whose result was asked for has failed, or was cancelled; the message says why."""


class JobFailed(TaqubaError):
    """A job whose result was asked for has failed, or was cancelled; the message says why."""

    def __init__(
        self,
        message: str,
        *,
        job_id: str = "",
        error: str | None = None,
        cancelled: bool = False,
        permanent: bool = False,
    ) -> None:
        super().__init__(message)
        self.job_id = job_id
        """The job's id."""
        self.error = error
        """The text of the error that it failed with, or the reason of the cancellation."""
        self.cancelled = cancelled
        """Whether it was cancelled."""
        self.permanent = permanent
        """Whether it was known that trying again would not help."""


class InconsistentRunState(TaqubaError):
    """A run's records contradict each other, for example because its job was removed by hand."""


class GroupNotFound(TaqubaError):
    """No run group has this id: it was never submitted, or was forgotten."""


class GroupMismatch(TaqubaError):
    """A group was submitted again with other members: another key, input, workflow, order or
    number. Nothing was written.
    """


class GroupIncomplete(TaqubaError):
    """The submission of a group was broken off, so its last members are not known.

    Submit the same members again: it goes on where it was.
    """


class GroupActive(TaqubaError):
    """A group cannot be forgotten while some of its members have not ended."""


class GroupStopped(TaqubaError):
    """A group was cancelled, or had as many failures as it may, while members were submitted."""


class EffectsSealed(TaqubaError):
    """Effects were staged after the step had returned, so they could not be committed with it."""


class SerializationError(TaqubaError):
    """A value cannot be encoded, or a stored one not decoded."""


class InvalidSignature(TaqubaError):
    """A webhook that was received is not signed with the secret, or is too old."""


class MissingDependency(TaqubaError, ImportError):
    """An optional dependency is not installed; the message names the extra."""


class TransientError(TaqubaError):
    """Raise it in a handler or runner: this attempt failed, try again with backoff.

    Args:
        *args: What happened.
        retry_after: The next attempt comes no sooner than this (a `timedelta`, or seconds), as a
            service's ``Retry-After`` asks for.
        retry_at: The next attempt comes no sooner than at this (aware) time.
    """

    def __init__(
        self,
        *args: object,
        retry_after: timedelta | float | None = None,
        retry_at: datetime | None = None,
    ) -> None:
        super().__init__(*args)
        self.retry_after = retry_after
        """What is no duration counts as not given: the failure itself must be recorded."""
        self.retry_at = retry_at


class PermanentError(TaqubaError):
    """Raise it in a handler or runner: trying again cannot help."""
