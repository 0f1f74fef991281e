"""Which job a log record is about.

Every record of taquba about one job has the attributes `taquba_job_id`, `taquba_queue` and
`taquba_attempt`. `JobContextFilter` gives them to your own records, too, while a worker's
handler runs: on the event loop, in tasks that the handler started, and in the threads of
workers. taquba installs no handlers and sets no levels.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any, Protocol

__all__ = ["JobContextFilter", "JobInfo", "current_job"]


class JobInfo(Protocol):
    """What is known of the job that is worked on."""

    @property
    def id(self) -> str:
        """The job's id."""
        ...

    @property
    def queue(self) -> str:
        """Name of its queue."""
        ...

    @property
    def attempts(self) -> int:
        """Which attempt it is; the first is 1."""
        ...


running_job: ContextVar[JobInfo | None] = ContextVar("taquba_job", default=None)


def current_job() -> JobInfo | None:
    """The job whose handler is running here, or None."""
    return running_job.get()


def about(job: JobInfo) -> dict[str, Any]:
    """The attributes that a log record about this job has, for ``extra``."""
    return fields(job.id, job.queue, job.attempts)


def fields(job_id: str, queue: str, attempt: int) -> dict[str, Any]:
    """The attributes that a log record about a job has, for ``extra``."""
    return {"taquba_job_id": job_id, "taquba_queue": queue, "taquba_attempt": attempt}


class JobContextFilter(logging.Filter):
    """Gives each record the attributes of the job whose handler logs it.

    Add it to the handlers of `logging`, not to loggers: a logger's filters do not see the
    records of its children. Without a job the attributes are None, so that formats can rely
    on them. It lets every record pass.

    Example:
        >>> import sys
        >>> handler = logging.StreamHandler(sys.stdout)
        >>> handler.addFilter(JobContextFilter())
        >>> handler.setFormatter(logging.Formatter("%(taquba_job_id)s %(message)s"))
        >>> log = logging.Logger("app")
        >>> log.addHandler(handler)
        >>> log.warning("hello")
        None hello
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what the record does not have."""
        if not hasattr(record, "taquba_job_id"):
            job = running_job.get()
            if job is None:
                record.taquba_job_id = record.taquba_queue = record.taquba_attempt = None
            else:
                record.__dict__.update(about(job))
        return True
