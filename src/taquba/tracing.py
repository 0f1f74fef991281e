"""The seam for tracing: spans around what happens to jobs, and a context that goes with them.

Give an object with the methods of `Tracing` to `Queue.open(tracing=…)`, such as
`taquba.opentelemetry.OpenTelemetryTracing`. The context travels in a job's headers, in W3C's
form: `TRACEPARENT` and `TRACESTATE`. Headers of that name that the caller gives are kept.
Payloads are never handed to tracing. An exception that one of the methods raises is logged,
once, and the work goes on without a span.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

__all__ = ["TRACEPARENT", "TRACESTATE", "Operation", "Tracing"]

TRACEPARENT = "traceparent"
"""Name of the header with the W3C trace parent."""
TRACESTATE = "tracestate"
"""Name of the header with the W3C trace state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What a span is about."""

    kind: Literal["enqueue", "handle", "settle"]
    """``handle`` is one attempt at a job, ``settle`` the commit that ends it."""
    queue: str
    job_id: str | None = None
    attempt: int | None = None
    count: int | None = None
    """How many jobs, if the call was about several."""
    headers: Mapping[str, str] | None = None
    """Of the job that is handled: with the context of its enqueue, if it has one."""


@runtime_checkable
class Tracing(Protocol):
    """Makes spans."""

    def inject(self, headers: MutableMapping[str, str]) -> None:
        """Add the context of the current span, if there is one, to a new job's headers."""
        ...

    def span(
        self, operation: Operation, parent: object = None
    ) -> AbstractContextManager[object | None]:
        """A span around a block; gives what can be the `parent` of another one.

        What the block raises is recorded as an error.
        """
        ...

    def fail(self, span: object, error: BaseException | str) -> None:
        """What a span is about failed, though its block raised nothing."""
        ...
