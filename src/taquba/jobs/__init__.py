"""Layer 6: typed functions as durable jobs."""

from taquba.jobs._context import BlockingJobContext as BlockingJobContext
from taquba.jobs._context import JobContext as JobContext
from taquba.jobs._handle import JobHandle as JobHandle
from taquba.jobs._job import Call as Call
from taquba.jobs._job import Job as Job
from taquba.jobs._job import job as job
from taquba.jobs._runner import JobRunner as JobRunner

__all__ = ["BlockingJobContext", "Call", "Job", "JobContext", "JobHandle", "JobRunner", "job"]
