"""Layer 6: typed functions and classes as durable jobs."""

from taquba.jobs._class import JobLike as JobLike
from taquba.jobs._class import payload_idempotency_key as payload_idempotency_key
from taquba.jobs._context import BlockingJobContext as BlockingJobContext
from taquba.jobs._context import JobContext as JobContext
from taquba.jobs._decorator import job as job
from taquba.jobs._definition import Call as Call
from taquba.jobs._function import Job as Job
from taquba.jobs._group import JobGroup as JobGroup
from taquba.jobs._group import JobResult as JobResult
from taquba.jobs._handle import JobHandle as JobHandle
from taquba.jobs._runner import JobRunner as JobRunner
from taquba.queue import JobView as JobView

__all__ = [
    "BlockingJobContext",
    "Call",
    "Job",
    "JobContext",
    "JobGroup",
    "JobHandle",
    "JobLike",
    "JobResult",
    "JobRunner",
    "JobView",
    "job",
    "payload_idempotency_key",
]
