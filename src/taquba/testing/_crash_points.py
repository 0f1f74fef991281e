"""Where a process is to crash."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from taquba._checks import is_async, shown, whole
from taquba.errors import InvalidArgument, TransientError
from taquba.tracing import Operation

if TYPE_CHECKING:
    from taquba.queue import Delivery
    from taquba.workflow import BlockingStep, Step

__all__ = ["CrashPlan", "CrashPoint", "Subject"]

CrashPoint = Literal["before_step", "before_settlement", "after_settlement"]
"""Moments in the life of one attempt at a step, or at a job of a worker:

``"before_step"``: it is claimed, and the runner (or handler) has not been called.
``"before_settlement"``: the runner has returned or raised, and nothing of that is stored, so the
next process runs it again.
``"after_settlement"``: what the runner returned is stored, and nothing else has happened since.
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """One attempt."""

    job_id: str
    queue: str
    attempt: int
    run_id: str | None = None
    step: int | None = None

    @classmethod
    def of(cls, called: Step | BlockingStep | Delivery) -> Subject:
        job = called._claim.job
        run_id: str | None = getattr(called, "run_id", None)
        return cls(job.id, job.queue, job.attempts, run_id, getattr(called, "number", None))

    def __str__(self) -> str:
        if self.run_id is None:
            return f"job {self.job_id} on queue {self.queue!r}, attempt {self.attempt}"
        return f"step {self.step} of run {self.run_id!r}, attempt {self.attempt}"


@dataclass(frozen=True, slots=True)
class _Planned:
    point: CrashPoint
    wanted: dict[str, object]

    def fits(self, point: CrashPoint, subject: Subject) -> bool:
        return self.point == point and all(
            getattr(subject, name) == value for name, value in self.wanted.items()
        )


class CrashPlan:
    """The crash points of one process, and the wrappers that see handlers pass them.

    Args:
        kill: Ends the process, and is told why.
        is_dead: Whether it has ended.
    """

    def __init__(self, kill: Callable[[str], None], is_dead: Callable[[], bool]) -> None:
        self._kill = kill
        self._is_dead = is_dead
        self._planned: list[_Planned] = []
        self._unsettled: dict[str, Subject] = {}

    def add(self, point: str, wanted: dict[str, object]) -> None:
        """Plan a crash.

        Raises:
            InvalidArgument: There is no such point, or no such attempt or step.
        """
        points = get_args(CrashPoint)
        if point not in points:
            raise InvalidArgument(f"point is {shown(point)}: give one of {', '.join(points)}")
        for name, least in (("step", 0), ("attempt", 1)):
            if wanted[name] is not None:
                whole(wanted[name], name, least, 2**31)
        given = {name: value for name, value in wanted.items() if value is not None}
        self._planned.append(_Planned(point, given))  # type: ignore[arg-type]

    def passes(self, point: CrashPoint, subject: Subject) -> bool:
        """Note that a handler has come to a point; whether the process is dead now."""
        if self._is_dead():
            return True
        if point == "before_step":
            for earlier in list(self._unsettled.values()):
                # The next step has begun before anybody was told of the settlement.
                later = earlier.run_id == subject.run_id and earlier.step != subject.step
                if earlier.step is not None and later and self._hit("after_settlement", earlier):
                    return True
        elif point == "before_settlement" and any(
            planned.fits("after_settlement", subject) for planned in self._planned
        ):
            self._unsettled[subject.job_id] = subject
        return self._hit(point, subject)

    def settled(self, operation: Operation) -> None:
        """What a handler said is durable."""
        subject = self._unsettled.pop(operation.job_id or "", None)
        if subject is not None and not self._is_dead():
            self._hit("after_settlement", subject)

    def _hit(self, point: CrashPoint, subject: Subject) -> bool:
        for planned in self._planned:
            if planned.fits(point, subject):
                self._planned.remove(planned)
                self._kill(f"{point} of {subject}")
                return True
        return False

    def wrap(self, handler: Any) -> Any:
        """A runner or handler, which tells when it begins and ends; what is none stays as it is."""
        target = getattr(handler, "run_step", handler)
        if inspect.isclass(handler) or not callable(target):
            return handler
        if is_async(target):
            return self._wrap_async(target)
        return self._wrap_blocking(target)

    def _wrap_async(self, target: Callable[[Any], Any]) -> Any:
        @functools.wraps(target)
        async def call(called: Any) -> Any:
            subject = Subject.of(called)
            await self._pass("before_step", subject)
            try:
                result = await target(called)
            except Exception:
                await self._pass("before_settlement", subject)
                raise
            await self._pass("before_settlement", subject)
            return result

        return call

    async def _pass(self, point: CrashPoint, subject: Subject) -> None:
        if self.passes(point, subject):
            await asyncio.get_running_loop().create_future()  # until it is cancelled

    def _wrap_blocking(self, target: Callable[[Any], Any]) -> Any:
        loop = asyncio.get_running_loop()

        @functools.wraps(target)
        def call(called: Any) -> Any:
            subject = Subject.of(called)
            passed(loop, "before_step", subject)
            try:
                result = target(called)
            except Exception:
                passed(loop, "before_settlement", subject)
                raise
            passed(loop, "before_settlement", subject)
            return result

        def passed(loop: asyncio.AbstractEventLoop, point: CrashPoint, subject: Subject) -> None:
            async def told() -> bool:
                return self.passes(point, subject)

            if asyncio.run_coroutine_threadsafe(told(), loop).result():
                raise TransientError("the process has crashed")  # which nobody is told

        return call
