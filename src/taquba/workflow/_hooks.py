"""The terminal hook: what it can be, and the notification that is made when a run ends."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import anyio

from taquba._checks import is_async, moment, shown
from taquba._msgpack import pack, unpack
from taquba.errors import InvalidType
from taquba.queue import NewJob
from taquba.workflow._headers import HEADER_LIFE, HEADER_RUN_ID, HEADER_TERMINAL, own_headers
from taquba.workflow._queues import hook_queue, workflow_of
from taquba.workflow._records import ErrorKind, RunOutcome, TerminalStatus
from taquba.workflow._submitting import RunEffects

if TYPE_CHECKING:
    from taquba.queue import Job, Queue

__all__ = [
    "Hook",
    "Hooks",
    "StepTerms",
    "TerminalHook",
    "TerminalHookFunction",
    "adapt_hook",
    "outcome_of",
]

logger = logging.getLogger("taquba.workflow")

_FORMAT = 1

TerminalHookFunction = (
    Callable[[RunOutcome, RunEffects], Awaitable[object]]
    | Callable[[RunOutcome, RunEffects], object]
)
"""Called with what a run came to, and effects to stage; async, or ordinary (in a thread)."""


class TerminalHook(Protocol):
    """An object that is told when runs end.

    It may also have a method ``observes(outcome) -> bool``, which says whether it is to be
    told of this one. That is called while the run ends, inside the transaction: it must be
    fast, and touch nothing but its argument.
    """

    on_termination: Any
    """A `TerminalHookFunction`, with `self` bound."""


class StepTerms(NamedTuple):
    """Priority and attempt limit of a step's job, where the job itself is not at hand."""

    priority: int | None
    max_attempts: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Hook:
    """A terminal hook, brought to one shape."""

    call: Callable[[RunOutcome, RunEffects], Awaitable[object]]
    check: Callable[[RunOutcome], object]

    def observes(self, outcome: RunOutcome) -> bool:
        """Whether the hook wants to be told.

        Raises:
            InvalidType: It did not say so.
        """
        answer = self.check(outcome)
        if not isinstance(answer, bool):
            if inspect.iscoroutine(answer):
                answer.close()
            raise InvalidType(f"observes returned {shown(answer)}: return True or False")
        return answer

    def wants(self, outcome: RunOutcome) -> bool:
        """The same, and True if it cannot say: the run must end, and the error shows up when
        the notification is delivered.
        """
        try:
            return self.observes(outcome)
        except Exception:
            logger.warning(
                "observes of the terminal hook failed for run %s, which has ended all the same; "
                "its notification will fail like that",
                outcome.run_id,
                exc_info=True,
            )
            return True


def adapt_hook(hook: Any, *, concurrency: int) -> Hook:
    """One way to call any terminal hook.

    Raises:
        InvalidType: It is none.
    """
    target: Any = getattr(hook, "on_termination", hook)
    observes: Any = getattr(hook, "observes", None)
    if inspect.iscoroutine(hook):
        hook.close()
    if not callable(target) or inspect.isclass(hook):
        raise InvalidType(
            f"terminal_hook is {shown(hook)}: give a function that takes an outcome and effects, "
            "or an object with a method on_termination (an instance, not a class)"
        )
    try:
        inspect.signature(target).bind(None, None)
    except TypeError as error:
        raise InvalidType(
            f"terminal_hook is called with two arguments, the outcome and effects, which "
            f"{shown(target)} does not take: {error}"
        ) from None
    except ValueError:  # its signature cannot be known: the call will tell
        pass
    if observes is None:
        observes = _always
    elif not callable(observes) or is_async(observes):
        raise InvalidType(
            "observes of the terminal hook must be an ordinary method: it is called inside the "
            "transaction that ends a run"
        )
    if is_async(target):
        call_async: Any = target  # since it returns an awaitable
        return Hook(call_async, observes)
    threads = anyio.CapacityLimiter(concurrency)

    def call_in_thread(outcome: RunOutcome, effects: RunEffects) -> Awaitable[object]:
        # A thread cannot be stopped: when the lease expires it is left alone, and what it
        # still stages is refused.
        return anyio.to_thread.run_sync(
            target, outcome, effects, limiter=threads, abandon_on_cancel=True
        )

    return Hook(call_in_thread, observes)


def _always(outcome: RunOutcome) -> bool:
    return True


class Hooks:
    """The terminal hooks of one queue name, and the queue of their notifications."""

    def __init__(self, queue: Queue, queue_name: str) -> None:
        self._queue = queue
        self.queue_name = hook_queue(queue_name)
        self._hooks: list[Hook] = []
        self._runners = 0
        self.active = False
        """Whether ends of runs are to be told at all."""

    def enter(self, hook: Hook | None, *, has_runner: bool) -> None:
        """A runtime with or without a hook begins to use this queue name."""
        if hook is not None:
            self._hooks.append(hook)
            # From the next commit on it is known that this name has a hook.
            core = self._queue._core
            core.moved(core.lane(self.queue_name), -1, -1)
        self._runners += has_runner
        self._look()

    def leave(self, hook: Hook | None, *, has_runner: bool) -> None:
        """Such a runtime has ended its use."""
        if hook is not None:
            self._hooks.remove(hook)
        self._runners -= has_runner
        self._look()

    def _look(self) -> None:
        """Where nobody runs steps, nobody can say that there is no hook any more: what another
        process is to be told, if one ever had a hook, is left to it.
        """
        elsewhere = not self._runners and self.queue_name in self._queue._core.lanes
        self.active = bool(self._hooks) or elsewhere

    def notification(self, life: int, outcome: RunOutcome, step: Job | StepTerms) -> NewJob | None:
        """The job that tells of this end; None if no hook wants to be told."""
        if self._hooks and not any(hook.wants(outcome) for hook in self._hooks):
            return None
        headers = {
            HEADER_RUN_ID: outcome.run_id,
            HEADER_LIFE: str(life),
            HEADER_TERMINAL: outcome.status.value,
        }
        # Not checked as a caller's job is: it must not keep the run from ending.
        return NewJob(
            queue=self.queue_name,
            payload=_packed(outcome),
            headers=pack(headers),
            priority=step.priority,
            run_at=None,
            delay=None,
            dedup_key=None,
            max_attempts=step.max_attempts,
            job_id=None,
        )

    def of_large_result(
        self, job: Job, life: int, run_id: str, number: int, result: object
    ) -> NewJob | None:
        """The job that is to tell of a success with this result, if that is to be an object of
        its own, which is stored before the run ends; None if it is small, or not wanted.
        """
        if not isinstance(result, bytes) or len(result) <= self._queue._core.payloads.above:
            return None
        workflow, revision = workflow_of(job.queue)
        outcome = RunOutcome(
            run_id=run_id,
            status=TerminalStatus.SUCCEEDED,
            result=result,
            error=None,
            error_kind=None,
            final_step=number,
            terminated_at=moment(self._queue.clock.now_ms()),
            headers=own_headers(job.headers),
            workflow=workflow,
            revision=revision,
        )
        return self.notification(life, outcome, job)


def _packed(outcome: RunOutcome) -> bytes:
    kind = outcome.error_kind
    return pack(
        [
            _FORMAT,
            outcome.run_id,
            outcome.status.value,
            outcome.result,
            outcome.error,
            None if kind is None else kind.value,
            outcome.final_step,
            outcome.headers,
            outcome.workflow,
            outcome.revision,
        ]
    )


def _is_notification(fields: object) -> bool:
    return isinstance(fields, list) and fields[:1] == [_FORMAT]


def outcome_of(data: bytes, terminated_at: datetime) -> RunOutcome:
    """What a notification tells that was enqueued at this time: when its run ended.

    Raises:
        ValueError: It is none.
    """
    fields: Any = unpack(data)
    if not _is_notification(fields):
        raise ValueError("it is no notification, or one of a newer taquba")
    _, run_id, status, result, error, kind, step, headers, workflow, revision = fields
    return RunOutcome(
        run_id=run_id,
        status=TerminalStatus(status),
        result=result,
        error=error,
        error_kind=None if kind is None else ErrorKind(kind),
        final_step=step,
        terminated_at=terminated_at,
        headers=headers,
        workflow=workflow,
        revision=revision,
    )
