"""Workflows as classes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, ForwardRef, Generic, TypeVar, cast, get_args, get_origin

from taquba._checks import shown, wrong_type
from taquba._codecs import Codec, codec_for
from taquba.clock import Duration
from taquba.errors import InvalidArgument, InvalidType, PermanentError, RunFailed
from taquba.queue import Effects
from taquba.stages._call import Call, read_payload
from taquba.stages._stage import BoundStage, stage
from taquba.workflow import (
    Cancel,
    Fail,
    Outcome,
    RunEnd,
    Step,
    Submitted,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

__all__ = ["Stages"]

Result = TypeVar("Result")


class Stages(Generic[Result]):
    """A workflow as a class, with one async method for each stage.

    An object of such a class is a runner, for a `WorkflowRuntime` or a `Workflow`. What stages
    are given, and what the run results in, is checked and stored by pydantic. A stage is run
    as one step: it has the step's memo, effects, retries and cancellation.

    Example:
        >>> import asyncio
        >>> from pydantic import BaseModel
        >>> from taquba import Queue
        >>> class Order(BaseModel):
        ...     item: str
        ...     price: int
        >>> class Receipt(BaseModel):
        ...     text: str
        >>> class Purchase(Stages[Receipt]):
        ...     def __init__(self, currency: str) -> None:
        ...         self.currency = currency
        ...     @stage
        ...     async def charge(self, step: Step, order: Order) -> Call:
        ...         return self.confirm(f"{order.item} for {order.price} {self.currency}")
        ...     @stage
        ...     async def confirm(self, step: Step, text: str) -> Receipt:
        ...         return Receipt(text=text)
        >>> async def main() -> Receipt:
        ...     purchase = Purchase("EUR")
        ...     async with Queue.open("memory://") as queue:
        ...         async with WorkflowRuntime(queue, purchase) as runtime:
        ...             order = Order(item="book", price=12)
        ...             run = await purchase.submit(runtime, purchase.charge(order))
        ...             return await purchase.result(runtime, run.run_id)
        >>> asyncio.run(main())
        Receipt(text='book for 12 EUR')
    """

    _stages: ClassVar[dict[str, stage[Any, Any]]] = {}
    _result_type: ClassVar[Any] = None
    _result_codec: ClassVar[Codec | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # In the order of definition; a subclass may replace a stage, or take one away.
        found: dict[str, stage[Any, Any]] = {}
        for base in reversed(cls.__mro__):
            for name, value in vars(base).items():
                if isinstance(value, stage):
                    found[name] = cast(Any, value)
                else:
                    found.pop(name, None)
        cls._stages = found
        for each in found.values():
            each.resolve()
        for base in getattr(cls, "__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Stages):
                [cls._result_type] = get_args(base)
                cls._result_codec = None

    async def run_step(self, step: Step) -> Outcome:
        """Run the stage that this step stands for; called by the runtime.

        Raises:
            SerializationError: What it is to be given does not decode as its type now.
            PermanentError: There is no such stage (any more).
        """
        name, data = read_payload(step.payload)
        found = self._stages.get(name)
        if found is None:
            revision = "" if step.revision is None else f", revision {step.revision},"
            raise PermanentError(
                f"{type(self).__name__}{revision} has no stage {name!r}; it has "
                f"{', '.join(self._stages) or 'none'}. Keep stages as long as there are runs at "
                "them, or give the changed workflow another revision"
            )
        bound: BoundStage[Any, Any] = BoundStage(found, self)
        returned = await bound.run_encoded(step, data)
        if isinstance(returned, Call):
            return returned.outcome()
        if isinstance(returned, (Fail, Cancel)):
            return returned
        if isinstance(returned, BoundStage):
            raise InvalidType(f"stage {name!r} returned a stage: call it, with its argument")
        encoded, _ = self._codec().encode(returned)
        return Succeed(encoded)

    async def submit(
        self,
        runtime: WorkflowRuntime,
        first: Call,
        *,
        run_id: str | None = None,
        workflow: str | None = None,
        revision: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        run_at: datetime | None = None,
        delay: Duration | None = None,
        effects: Effects | None = None,
    ) -> Submitted:
        """Start a run with the call of a stage: ``submit(runtime, purchase.charge(order))``.

        See `WorkflowRuntime.submit` for the options, and for what it raises.

        Raises:
            InvalidArgument: The call has a delay or waits for a signal: use `delay` or
                `run_at`, or a first stage that does no more than go on with the next.
        """
        if not isinstance(first, Call):
            raise wrong_type("a run begins with the call of a stage, workflow.first(…)", first)
        if first.stage not in self._stages:
            raise InvalidArgument(f"{type(self).__name__} has no stage {first.stage!r}")
        if first.delay is not None or first.signal is not None:
            raise InvalidArgument(
                "the first stage of a run can neither have a delay nor wait for a signal: use "
                "delay=… or run_at=…, or a stage that goes on with this call"
            )
        return await runtime.submit(
            first.payload,
            run_id=run_id,
            workflow=workflow,
            revision=revision,
            headers=headers,
            priority=priority,
            max_attempts=max_attempts,
            run_at=run_at,
            delay=delay,
            effects=effects,
        )

    async def result(
        self, runtime: WorkflowRuntime, run_id: str, timeout: Duration | None = None
    ) -> Result:
        """Wait for the end of a run, and give its result.

        Raises:
            RunFailed: It failed or was cancelled.
            RunNotFound: No run has this id.
            TimeoutError: It had not ended in time.
            SerializationError: The result does not decode as the workflow's result type now.
        """
        return self.result_of(await runtime.wait(run_id, timeout))

    def result_of(self, end: RunEnd) -> Result:
        """The result of a run that has ended.

        Raises:
            RunFailed: It failed or was cancelled.
            SerializationError: The result does not decode as the workflow's result type now.
        """
        if not isinstance(end, RunEnd):
            raise InvalidType(f"end must be what wait() returned, not {shown(end)}")
        termination = end.termination
        if termination.status is not TerminalStatus.SUCCEEDED:
            raise RunFailed(
                f"run {end.outcome.run_id!r} {_ENDED[termination.status]} at step "
                f"{termination.final_step}: {termination.error or 'no reason was given'}"
            )
        return cast(Result, self._codec().decode(end.outcome.result or b""))

    @classmethod
    def _codec(cls) -> Codec:
        if cls._result_codec is None:
            kind = cls._result_type
            if isinstance(kind, ForwardRef):
                # Written as text: defined further down in the class's own module.
                name, module = kind.__forward_arg__, sys.modules[cls.__module__]
                try:
                    kind = eval(name, vars(module))
                except NameError as error:
                    raise InvalidType(
                        f"the result type {name!r} of {cls.__name__} is not known: define it at "
                        "the top of the same module"
                    ) from error
            cls._result_codec = codec_for(None if kind is Any else kind)
        return cls._result_codec


_ENDED = {TerminalStatus.FAILED: "failed", TerminalStatus.CANCELLED: "was cancelled"}
