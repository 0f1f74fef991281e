"""The kinds of handler, brought to one shape: on the event loop, in threads, in processes."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import pickle
from collections.abc import Awaitable, Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import ProcessPoolExecutor
from typing import Any, cast

import anyio

from taquba._checks import is_async, shown
from taquba.clock import Clock
from taquba.errors import InvalidArgument, InvalidType, TransientError
from taquba.logs import about
from taquba.queue._core import logger
from taquba.queue._delivery import Delivery, JobView
from taquba.queue._outcomes import Result

__all__ = ["Calling", "ExecutorBroke", "ExecutorGone", "Handler", "InExecutor", "OnLoop", "adapt"]

Handler = (
    Callable[[Delivery], Awaitable[Result]]
    | Callable[[Delivery], Result]
    | Callable[[JobView], Result]
)
"""Works on a job: an async function; a function, for a thread; or one for another process."""

MakeExecutor = Callable[[], Executor]


class ExecutorGone(Exception):
    """The executor takes nothing any more: the job has not begun."""


class ExecutorBroke(TransientError):
    """The executor broke while it had the job."""


class OnLoop:
    """Calls an async function."""

    is_replaced = False

    def __init__(self, handler: Callable[[Delivery], Awaitable[Result]]) -> None:
        self.call: Callable[[Delivery], Awaitable[object]] = handler

    def open(self, is_cancelled: Callable[[], bool]) -> None:
        pass

    def close(self) -> None:
        pass


class InExecutor:
    """Calls a function in an executor, which is the caller's or made here.

    What runs there cannot be cancelled. If its job's time is over, it is waited for as long
    as it takes, so that its place in the worker is not given to another; if the worker must
    end, for `grace` seconds.
    """

    def __init__(
        self,
        handler: Callable[[Any], object],
        executor: Executor | MakeExecutor,
        *,
        clock: Clock,
        grace: float,
    ) -> None:
        self._handler = handler
        self._executor: Executor | None = None
        self._make: MakeExecutor | None = None
        if isinstance(executor, Executor):
            self._executor = executor
            self._check(executor)
        else:
            self._make = executor
        self._clock = clock
        self._grace = grace
        self._is_cancelled: Callable[[], bool] = lambda: False

    def open(self, is_cancelled: Callable[[], bool]) -> None:
        """Begin; `is_cancelled` says whether the worker of the current task must end."""
        self._is_cancelled = is_cancelled
        if self._make is not None:
            made = self._make()
            if not isinstance(made, Executor):  # it is the caller's code
                raise InvalidType(f"the executor's factory returned {shown(made)}, not an Executor")
            self._check(made)
            self._executor = made

    def close(self) -> None:
        """End: an executor that was made here is shut down, without waiting for it."""
        if self._make is not None and self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    async def call(self, delivery: Delivery) -> object:
        executor, running = self._submit(delivery)
        result = asyncio.wrap_future(running)
        try:
            await asyncio.wait([result])
        except asyncio.CancelledError:
            delivery._stopping = True
            if running.cancel():
                raise
            await self._end(result, delivery)  # it has begun
            if not result.done() or not delivery.is_live or self._is_cancelled():
                raise
            # Only its place was wanted back, and it has ended in time.
        if result.cancelled():
            raise TransientError("the executor cancelled the handler; was it shut down?")
        error = result.exception()
        if isinstance(error, BrokenExecutor) and _is_broken(executor):
            self._broke(executor)
            raise ExecutorBroke(
                f"the executor broke while it had this job ({error}). Either this job's handler "
                "ended its process, or another's did, or the system was out of memory"
            ) from error
        if error is not None and not isinstance(error, Exception):
            # In a thread or a process of its own it ends nothing there either.
            raise TransientError(f"the handler raised {error!r} in its executor") from error
        return result.result()

    def _submit(self, delivery: Delivery) -> tuple[Executor, Future[object]]:
        for last in (self._make is None, True):
            executor = self._executor
            assert executor is not None
            call: tuple[Callable[..., Any], ...] | tuple[Any, ...]
            if isinstance(executor, ThreadPoolExecutor):
                call = (contextvars.copy_context().run, self._handler, delivery)
            else:  # what cannot go to another process is no fault of the executor
                call = (self._handler, JobView.of(delivery.job))
            try:
                return executor, executor.submit(*call)
            except Exception as error:
                if last:
                    raise ExecutorGone(f"the executor takes no more jobs: {error}") from error
                self._broke(executor)
        raise AssertionError("not reached")

    def _broke(self, executor: Executor) -> None:
        if self._make is not None and self._executor is executor:
            logger.warning("the executor of a worker broke; a new one is made")
            executor.shutdown(wait=False)
            self._executor = self._make()

    @property
    def is_replaced(self) -> bool:
        """Whether an executor that broke is replaced by a new one."""
        return self._make is not None

    async def _end(self, result: asyncio.Future[object], delivery: Delivery) -> None:
        """Wait for what cannot be cancelled."""
        while not result.done() and not delivery.is_live and not self._is_cancelled():
            try:
                await asyncio.wait([result])
            except asyncio.CancelledError:
                continue
        if not result.done():
            timer = asyncio.ensure_future(self._clock.sleep(self._grace))
            try:
                with anyio.CancelScope(shield=True):
                    waits: list[asyncio.Future[Any]] = [result, timer]
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
        if not result.done():
            logger.warning(
                "the handler of job %s runs on in its executor, and its job is given back",
                delivery.job.id,
                extra=about(delivery.job),
            )
        result.add_done_callback(_ignore)

    def _check(self, executor: Executor) -> None:
        if isinstance(executor, ProcessPoolExecutor):
            try:
                pickle.dumps(self._handler)
            except Exception as error:
                raise InvalidArgument(
                    "a handler that runs in other processes must be a function at the top of a "
                    f"module, so that it can be pickled: {error}"
                ) from error


def _is_broken(executor: Executor) -> bool:
    """Whether it was this one, and not another one that a handler uses; if that can be told."""
    return bool(getattr(executor, "_broken", True))


def _ignore(result: asyncio.Future[object]) -> None:
    if not result.cancelled():
        result.exception()


Calling = OnLoop | InExecutor


def adapt(
    handler: Handler,
    executor: Executor | MakeExecutor | None,
    *,
    concurrency: int,
    clock: Clock,
    grace: float,
) -> Calling:
    """One way to call any handler.

    Raises:
        InvalidType: It is no handler, or no executor.
        InvalidArgument: They do not go together.
    """
    if inspect.iscoroutine(handler):
        handler.close()
    if not callable(handler) or inspect.isclass(handler):
        raise InvalidType(
            f"handler is {shown(handler)}: give an async function that takes a Delivery, or an "
            "ordinary function, which runs in a thread"
        )
    if executor is not None and not isinstance(executor, Executor) and not callable(executor):
        raise InvalidType(
            f"executor is {shown(executor)}: give a concurrent.futures.Executor, or a function "
            "that makes one"
        )
    if is_async(handler):
        if executor is not None:
            raise InvalidArgument(
                "an async handler runs on the event loop: give an ordinary function to run it in "
                "an executor, or no executor"
            )
        return OnLoop(cast("Callable[[Delivery], Awaitable[Result]]", handler))

    def threads() -> Executor:
        return ThreadPoolExecutor(concurrency, thread_name_prefix="taquba-worker")

    call = cast("Callable[[Any], Result]", handler)
    return InExecutor(call, executor or threads, clock=clock, grace=grace)
