"""What goes on in a sandbox: who works on what, and what the event loop cannot see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

from taquba.testing._whereabouts import place_of, waits_outside
from taquba.tracing import Operation, Tracing

__all__ = ["Activity", "StillRunning"]

_current: ContextVar[Activity | None] = ContextVar("taquba_testing_activity", default=None)


class StillRunning(AssertionError):
    """Something in a `Sandbox` should have come to an end, and has not. Says what, and where."""


class _Span:
    """One attempt at a job, while its handler runs."""

    def __init__(self, operation: Operation, task: asyncio.Task[Any] | None, inner: object) -> None:
        self.operation = operation
        self.task = task
        self.inner = inner


class Activity:
    """Knows the tasks that work in one sandbox. It is told of handlers as their `Tracing`."""

    def __init__(self, patience: float, inner: Tracing | None) -> None:
        self.progress = 0
        self.calls: list[_Span] = []
        """The handlers that run now."""
        self.on_settled: Callable[[Operation], None] = lambda _: None
        """Told when what a handler said is durable."""
        self.describe: Callable[[Operation], str] = _job
        self._patience = patience
        self._inner = inner
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._requesting: dict[asyncio.Task[Any], int] = {}
        self._before: Any = None
        self._installed: Any = None

    # -- whose task is whose ----------------------------------------------------------------

    def begin(self) -> None:
        """From now on, what the tasks of this sandbox start belongs to it, too."""
        loop = asyncio.get_running_loop()
        self._before = before = loop.get_task_factory()

        def make(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
            if before is not None:
                task: Any = before(loop, coro, **options)
            else:
                task = asyncio.Task(coro, loop=loop, **options)
            activity = _current.get()
            if activity is not None:
                activity._tasks.add(task)
            return task

        self._installed = make
        loop.set_task_factory(make)

    def end(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.get_task_factory() is self._installed:
            loop.set_task_factory(self._before)

    @contextmanager
    def inside(self) -> Generator[None]:
        """A block whose tasks belong to this sandbox."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @property
    def is_current(self) -> bool:
        """Whether the caller is part of what runs in this sandbox."""
        return _current.get() is self

    @contextmanager
    def request(self) -> Generator[None]:
        """A block in which the current task waits for the store."""
        task = asyncio.current_task()
        assert task is not None
        self.progress += 1
        self._requesting[task] = self._requesting.get(task, 0) + 1
        try:
            yield
        finally:
            self.progress += 1
            self._requesting[task] -= 1
            if not self._requesting[task]:
                del self._requesting[task]

    # -- tracing ----------------------------------------------------------------------------

    def inject(self, headers: MutableMapping[str, str]) -> None:
        if self._inner is not None:
            self._inner.inject(headers)

    @contextmanager
    def span(self, operation: Operation, parent: object = None) -> Generator[_Span]:
        task = asyncio.current_task()
        outer = parent.inner if isinstance(parent, _Span) else None
        block: AbstractContextManager[object | None] = nullcontext()
        if self._inner is not None:
            block = self._inner.span(operation, outer)
        with block as inner:
            span = _Span(operation, task, inner)
            if operation.kind == "handle":
                self.progress += 1
                self.calls.append(span)
                token = _current.set(self)
                if task is not None:
                    self._tasks.add(task)
                try:
                    yield span
                finally:
                    self.progress += 1
                    self.calls.remove(span)
                    _current.reset(token)
            else:
                yield span
                if operation.kind == "settle":
                    self.progress += 1
                    self.on_settled(operation)

    def fail(self, span: object, error: BaseException | str) -> None:
        if self._inner is not None and isinstance(span, _Span):
            self._inner.fail(span.inner, error)

    # -- what the clock asks ----------------------------------------------------------------

    async def wait_outside(self) -> bool:
        """Wait until a thread or a socket that somebody here waits for has answered."""
        if not self._patience:
            return False
        caller = asyncio.current_task()
        waits: dict[asyncio.Future[Any], asyncio.Task[Any]] = {}
        for task in {*self._tasks, *self._requesting}:
            if task is not caller and not task.done():
                waits.update((future, task) for future in waits_outside(task))
        if not waits:
            return False
        done, _ = await asyncio.wait(
            waits, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            raise StillRunning(
                f"{self.running()}; it has waited {self._patience:g} s of real time for a thread, "
                "a socket or a real sleep. If that has to wait for this test, open the Sandbox "
                "with patience=0"
            )
        return True

    def never_quiet(self) -> None:
        raise StillRunning(
            f"{self.running()}; the event loop is kept busy, and nothing gets done: is there a "
            "loop around asyncio.sleep(0)?"
        )

    def running(self) -> str:
        """Which handlers run now, and where they wait."""
        calls = [f"{self.describe(each.operation)} {place_of(each.task)}" for each in self.calls]
        return "still running: " + ("; ".join(calls) or "the library itself")


def _job(operation: Operation) -> str:
    return f"job {operation.job_id} on queue {operation.queue!r} (attempt {operation.attempt})"
