"""Blocks whose time is measured, and which are traced."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, MutableMapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from taquba._msgpack import unpack
from taquba.errors import ValueTooLarge
from taquba.queue import _validate
from taquba.queue._core import logger
from taquba.tracing import TRACEPARENT, Operation

if TYPE_CHECKING:
    from taquba.metrics import Instrument
    from taquba.queue._core import Core
    from taquba.queue._effects import NewJob
    from taquba.tracing import Tracing

__all__ = ["GuardedTracing", "measured", "stamp", "stamped"]

_T = TypeVar("_T")


@asynccontextmanager
async def measured(
    core: Core,
    instrument: Instrument | None,
    operation: Operation | None,
    queue: str,
    block: AbstractAsyncContextManager[_T],
) -> AsyncGenerator[_T]:
    """The same block, whose duration is recorded if it succeeds, in a span of its own."""
    observer = core.observer
    began = 0.0 if observer is None else observer.began()
    if core.tracing is None or operation is None:
        async with block as entered:
            yield entered
    else:
        with core.tracing.span(operation):
            async with block as entered:
                yield entered
    if observer is not None and instrument is not None:
        observer.took(instrument, queue, began)


class GuardedTracing:
    """A `Tracing` whose exceptions harm nobody: the first is logged, and work goes on."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._told = False

    def _report(self) -> None:
        if not self._told:
            self._told = True
            logger.warning("tracing fails; this is told once", exc_info=True)

    def inject(self, headers: MutableMapping[str, str]) -> None:
        found = dict(headers)
        try:
            self._tracing.inject(found)
        except Exception:
            self._report()
        else:
            headers.update(found)

    def fail(self, span: object, error: BaseException | str) -> None:
        try:
            self._tracing.fail(span, error)
        except Exception:
            self._report()

    @contextmanager
    def span(self, operation: Operation, parent: object = None) -> Generator[object]:
        try:
            block = self._tracing.span(operation, parent)
            span = block.__enter__()
        except Exception:
            self._report()
            yield None
            return
        try:
            yield span
        except BaseException as error:
            self._leave(block, error)
            raise
        self._leave(block, None)

    def _leave(
        self, block: AbstractContextManager[object | None], error: BaseException | None
    ) -> None:
        try:
            if error is None:
                block.__exit__(None, None, None)
            else:
                block.__exit__(type(error), error, error.__traceback__)
        except Exception as other:
            if other is not error:
                self._report()


def stamp(tracing: Tracing, headers: bytes | None) -> bytes | None:
    """A new job's headers, with the current trace context if they have none and room for it."""
    found: dict[str, str] = {} if headers is None else unpack(headers)
    if TRACEPARENT in found:
        return headers
    before = len(found)
    tracing.inject(found)
    if len(found) == before:
        return headers
    try:
        return _validate.headers(found)
    except ValueTooLarge:
        return headers


def stamped(tracing: Tracing, job: NewJob) -> NewJob:
    """The job, with the current trace context in its headers."""
    headers = stamp(tracing, job.headers)
    return job if headers is job.headers else replace(job, headers=headers)
