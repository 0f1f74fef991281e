"""The kinds of runner, brought to one shape."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio

from taquba._checks import blob, is_async, shown
from taquba.errors import InvalidType
from taquba.queue import MAX_PAYLOAD_SIZE
from taquba.workflow._memo import MEMO_INLINE_LIMIT
from taquba.workflow._outcomes import Cancel, Continue, Fail, Outcome, Succeed
from taquba.workflow._step import BlockingStep, Step

if TYPE_CHECKING:
    from taquba.queue import Claim, Queue
    from taquba.workflow._runs import RunTable

__all__ = ["AsyncRunner", "BlockingRunner", "CallRunner", "Runner", "StepRunner", "adapt"]

AsyncRunner = Callable[[Step], Awaitable[Outcome]]
"""An async function; the usual kind."""
BlockingRunner = Callable[[BlockingStep], Outcome]
"""An ordinary function; it is called in a thread."""


class StepRunner(Protocol):
    """An object that runs steps; `run_step` may be async or not."""

    run_step: Any
    """As an `AsyncRunner` or a `BlockingRunner`, with `self` bound."""


Runner = AsyncRunner | BlockingRunner | StepRunner

CallRunner = Callable[["Queue", "RunTable", "Claim", int, str, int], tuple[Any, Awaitable[Any]]]
"""Makes the step and the awaitable that runs it, from queue, runs, claim, life, run id, number."""


def adapt(
    runner: Runner, *, concurrency: int, memo_inline_limit: int | None = MEMO_INLINE_LIMIT
) -> CallRunner:
    """One way to call any runner.

    Raises:
        InvalidType: It is no runner.
    """
    target = getattr(runner, "run_step", runner)
    if inspect.iscoroutine(runner):
        runner.close()
    if not callable(target) or inspect.isclass(runner):
        raise InvalidType(
            f"runner is {shown(runner)}: give an async function that takes a Step, a function that "
            "takes a BlockingStep, or an object with a method run_step (an instance, not a class)"
        )
    _takes_a_step(target)
    if is_async(target):
        run_async = cast(AsyncRunner, target)

        def call_async(
            queue: Queue, runs: RunTable, claim: Claim, life: int, run_id: str, number: int
        ) -> tuple[Any, Awaitable[Any]]:
            step = Step(queue, runs, claim, life, run_id, number, memo_inline_limit)
            return step, run_async(step)

        return call_async

    run_blocking = cast(BlockingRunner, target)
    threads = anyio.CapacityLimiter(concurrency)

    def call_in_thread(
        queue: Queue, runs: RunTable, claim: Claim, life: int, run_id: str, number: int
    ) -> tuple[Any, Awaitable[Any]]:
        step = BlockingStep(queue, runs, claim, life, run_id, number, memo_inline_limit)
        # A thread cannot be stopped: when the lease expires it is left alone, and what it
        # still does is refused.
        return step, anyio.to_thread.run_sync(
            run_blocking, step, limiter=threads, abandon_on_cancel=True
        )

    return call_in_thread


def _takes_a_step(target: Callable[..., Any]) -> None:
    """Refuse a runner that cannot be called with a step alone."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # of something written in C: the call will tell
        return
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(target, "__qualname__", repr(target))
        raise InvalidType(
            f"a runner is called with one argument, the step, but {name}{signature} does not take "
            f"that: {error}; pass what else it needs with functools.partial, or make it a method "
            "run_step of an object that has it"
        ) from None


def _blob(value: object, name: str) -> bytes:
    return blob(value, name=name, limit=MAX_PAYLOAD_SIZE)


def check_outcome(outcome: object, run_id: str, number: int) -> Outcome:
    """The outcome, if it is one, with what it carries as bytes.

    Raises:
        InvalidType: It is something else; the message guesses what went wrong.
    """
    if isinstance(outcome, Continue):
        if type(outcome.payload) is bytes:
            return outcome
        return replace(outcome, payload=_blob(outcome.payload, "the payload of Continue"))
    if isinstance(outcome, Succeed):
        if outcome.result is None or type(outcome.result) is bytes:
            return outcome
        return replace(outcome, result=_blob(outcome.result, "the result of Succeed"))
    if isinstance(outcome, (Fail, Cancel)):
        return outcome
    if inspect.iscoroutine(outcome):
        outcome.close()
        hint = "it is a coroutine: declare the runner with 'async def', or await it"
    elif outcome is None:
        hint = "is a 'return' missing?"
    elif isinstance(outcome, type):
        hint = f"return an instance: {outcome.__name__}(…)"
    elif inspect.isgenerator(outcome) or inspect.isasyncgen(outcome):
        hint = "the runner is a generator: write 'return' instead of 'yield'"
    else:
        hint = "wrap it, for example in Succeed(…)"
    raise InvalidType(
        f"the runner returned {shown(outcome)} from step {number} of run {run_id!r}, "
        f"which is not Continue, Succeed, Fail or Cancel; {hint}"
    )
