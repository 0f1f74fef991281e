"""Layer 4: jobs, claims, leases, settlement with effects, dead letters, schedules, key-value."""

from taquba.database import Lag as Lag
from taquba.queue._calling import Handler as Handler
from taquba.queue._config import MAX_BATCH_SIZE as MAX_BATCH_SIZE
from taquba.queue._config import MAX_CONCURRENCY_KEY_LENGTH as MAX_CONCURRENCY_KEY_LENGTH
from taquba.queue._config import MAX_DEDUP_KEY_LENGTH as MAX_DEDUP_KEY_LENGTH
from taquba.queue._config import MAX_ERROR_LENGTH as MAX_ERROR_LENGTH
from taquba.queue._config import MAX_HEADERS_SIZE as MAX_HEADERS_SIZE
from taquba.queue._config import MAX_HISTORY as MAX_HISTORY
from taquba.queue._config import MAX_JOB_ID_LENGTH as MAX_JOB_ID_LENGTH
from taquba.queue._config import MAX_KV_KEY_SIZE as MAX_KV_KEY_SIZE
from taquba.queue._config import MAX_KV_VALUE_SIZE as MAX_KV_VALUE_SIZE
from taquba.queue._config import MAX_PAYLOAD_SIZE as MAX_PAYLOAD_SIZE
from taquba.queue._config import MAX_PRIORITY as MAX_PRIORITY
from taquba.queue._config import MAX_QUEUE_NAME_LENGTH as MAX_QUEUE_NAME_LENGTH
from taquba.queue._config import MAX_STREAMED_PAYLOAD_SIZE as MAX_STREAMED_PAYLOAD_SIZE
from taquba.queue._config import MAX_TRACEBACK_LENGTH as MAX_TRACEBACK_LENGTH
from taquba.queue._config import MAX_WAKE_PAYLOAD_SIZE as MAX_WAKE_PAYLOAD_SIZE
from taquba.queue._config import PRIORITY_HIGH as PRIORITY_HIGH
from taquba.queue._config import PRIORITY_LOW as PRIORITY_LOW
from taquba.queue._config import PRIORITY_NORMAL as PRIORITY_NORMAL
from taquba.queue._config import QueueConfig as QueueConfig
from taquba.queue._delivery import Delivery as Delivery
from taquba.queue._delivery import JobView as JobView
from taquba.queue._effects import EffectPart as EffectPart
from taquba.queue._effects import Effects as Effects
from taquba.queue._effects import NewJob as NewJob
from taquba.queue._effects import new_job as new_job
from taquba.queue._engine import Engine as Engine
from taquba.queue._engine import FailedSettlement as FailedSettlement
from taquba.queue._engine import OnError as OnError
from taquba.queue._engine import Settlement as Settlement
from taquba.queue._engine import Work as Work
from taquba.queue._expiry import DeleteEntry as DeleteEntry
from taquba.queue._expiry import ExpiryIndex as ExpiryIndex
from taquba.queue._expiry import KeepEntry as KeepEntry
from taquba.queue._failure import Failure as Failure
from taquba.queue._failure import failure_of as failure_of
from taquba.queue._flow_status import FlowStatus as FlowStatus
from taquba.queue._follower import Follower as Follower
from taquba.queue._kv import KeyValue as KeyValue
from taquba.queue._kv_reading import KeyValueReader as KeyValueReader
from taquba.queue._leases import CancelToken as CancelToken
from taquba.queue._opening import Opening as Opening
from taquba.queue._outcomes import Dead as Dead
from taquba.queue._outcomes import Done as Done
from taquba.queue._outcomes import FailWith as FailWith
from taquba.queue._outcomes import Result as Result
from taquba.queue._outcomes import Retry as Retry
from taquba.queue._payload_objects import PAYLOAD_PREFIX as PAYLOAD_PREFIX
from taquba.queue._payloads import StoredValue as StoredValue
from taquba.queue._queue import Queue as Queue
from taquba.queue._rate import RateLimit as RateLimit
from taquba.queue._reading import QueueReader as QueueReader
from taquba.queue._records import Attempt as Attempt
from taquba.queue._records import AttemptOutcome as AttemptOutcome
from taquba.queue._records import Claim as Claim
from taquba.queue._records import Heartbeat as Heartbeat
from taquba.queue._records import Job as Job
from taquba.queue._records import JobPage as JobPage
from taquba.queue._records import JobState as JobState
from taquba.queue._records import KeyValuePage as KeyValuePage
from taquba.queue._records import QueueStats as QueueStats
from taquba.queue._results import Cancelled as Cancelled
from taquba.queue._results import CancelOutcome as CancelOutcome
from taquba.queue._results import Committed as Committed
from taquba.queue._results import Completion as Completion
from taquba.queue._results import CompletionOutcome as CompletionOutcome
from taquba.queue._results import Enqueued as Enqueued
from taquba.queue._results import Redriven as Redriven
from taquba.queue._results import Settled as Settled
from taquba.queue._results import WakeOutcome as WakeOutcome
from taquba.queue._results import Woken as Woken
from taquba.queue._retry import RetryPolicy as RetryPolicy
from taquba.queue._transaction import QueueTransaction as QueueTransaction
from taquba.queue._verify import QUEUE_CHECKS as QUEUE_CHECKS
from taquba.queue._verify_payloads import verify_queue as verify_queue
from taquba.queue._worker import Worker as Worker

__all__ = [
    "MAX_BATCH_SIZE",
    "MAX_CONCURRENCY_KEY_LENGTH",
    "MAX_DEDUP_KEY_LENGTH",
    "MAX_ERROR_LENGTH",
    "MAX_HEADERS_SIZE",
    "MAX_HISTORY",
    "MAX_JOB_ID_LENGTH",
    "MAX_KV_KEY_SIZE",
    "MAX_KV_VALUE_SIZE",
    "MAX_PAYLOAD_SIZE",
    "MAX_PRIORITY",
    "MAX_QUEUE_NAME_LENGTH",
    "MAX_STREAMED_PAYLOAD_SIZE",
    "MAX_TRACEBACK_LENGTH",
    "MAX_WAKE_PAYLOAD_SIZE",
    "PAYLOAD_PREFIX",
    "PRIORITY_HIGH",
    "PRIORITY_LOW",
    "PRIORITY_NORMAL",
    "QUEUE_CHECKS",
    "Attempt",
    "AttemptOutcome",
    "CancelOutcome",
    "CancelToken",
    "Cancelled",
    "Claim",
    "Committed",
    "Completion",
    "CompletionOutcome",
    "Dead",
    "DeleteEntry",
    "Delivery",
    "Done",
    "EffectPart",
    "Effects",
    "Engine",
    "Enqueued",
    "ExpiryIndex",
    "FailWith",
    "FailedSettlement",
    "Failure",
    "FlowStatus",
    "Follower",
    "Handler",
    "Heartbeat",
    "Job",
    "JobPage",
    "JobState",
    "JobView",
    "KeepEntry",
    "KeyValue",
    "KeyValuePage",
    "KeyValueReader",
    "Lag",
    "NewJob",
    "OnError",
    "Opening",
    "Queue",
    "QueueConfig",
    "QueueReader",
    "QueueStats",
    "QueueTransaction",
    "RateLimit",
    "Redriven",
    "Result",
    "Retry",
    "RetryPolicy",
    "Settled",
    "Settlement",
    "StoredValue",
    "WakeOutcome",
    "Woken",
    "Work",
    "Worker",
    "failure_of",
    "new_job",
    "verify_queue",
]
