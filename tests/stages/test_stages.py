"""Workflows as classes: stages, what they pass on, and what goes wrong."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from taquba.errors import (
    InvalidArgument,
    InvalidType,
    RunFailed,
    RunNotFound,
    SerializationError,
)
from taquba.objectstore import MemoryStore
from taquba.stages import Call, Stages, stage
from taquba.workflow import (
    Continue,
    ErrorKind,
    Fail,
    RunState,
    Step,
    Succeed,
    TerminalStatus,
    TransientError,
    Workflow,
)
from tests.stages.workflows import Order, Purchase, Receipt
from tests.workflow.harness import Bed, bed

pytestmark = pytest.mark.anyio


async def ended(t: Bed, workflow: Stages[Any], call: Call, run_id: str = "r") -> Any:
    await workflow.submit(t.runtime, call, run_id=run_id)
    await t.end(run_id)
    return await workflow.result(t.runtime, run_id)


async def test_a_run_goes_from_stage_to_stage_and_has_a_typed_result() -> None:
    purchase = Purchase("EUR")
    async with bed(purchase) as t:
        receipt = await ended(t, purchase, purchase.charge(Order(item="book", price=12)))
        assert receipt == Receipt(text="book for 12 EUR", attempt=1)
        status = await t.runtime.status("r")
        assert status is not None
        assert (status.state, status.current_step) == (RunState.TERMINATED, 1)


async def test_a_call_may_wait() -> None:
    purchase = Purchase()
    async with bed(purchase) as t:
        await purchase.submit(t.runtime, purchase.charge(Order(item="car", price=9000)), run_id="r")
        await t.clock.advance(24 * 3600 - 1)
        with pytest.raises(TimeoutError):
            await purchase.result(t.runtime, "r", timeout=0)
        await t.clock.advance(1)
        assert (await purchase.result(t.runtime, "r")).text == "car for 9000 EUR"


async def test_a_call_may_wait_for_a_signal() -> None:
    class Approval(Stages[str]):
        @stage
        async def ask(self, step: Step, text: str) -> Call:
            return self.decide(text).on_signal(f"approve-{text}", timeout=3600)

        @stage
        async def decide(self, step: Step, text: str) -> str:
            return f"{text}: {'no answer' if step.signal is None else step.signal.decode()}"

    approval = Approval()
    async with bed(approval) as t:
        for name in ("a", "b"):
            await approval.submit(t.runtime, approval.ask(name), run_id=name)
        await t.settle()
        await t.runtime.signal("approve-a", b"yes")
        await t.end("a", within=0)
        assert await approval.result(t.runtime, "a") == "a: yes"
        await t.clock.advance(3600)
        assert await approval.result(t.runtime, "b") == "b: no answer"


async def test_any_stage_can_be_the_first() -> None:
    purchase = Purchase()
    async with bed(purchase) as t:
        receipt = await ended(t, purchase, purchase.confirm(["a", "b"]))
        assert receipt == Receipt(text="a for b", attempt=1)


async def test_a_stage_may_fail_or_cancel_the_run() -> None:
    purchase = Purchase()
    async with bed(purchase) as t:
        with pytest.raises(RunFailed, match="run 'f' failed at step 0: no price"):
            await ended(t, purchase, purchase.charge(Order(item="x", price=-1)), "f")
        with pytest.raises(RunFailed, match="run 'c' was cancelled at step 0: nothing to pay"):
            await ended(t, purchase, purchase.charge(Order(item="x", price=0)), "c")
        with pytest.raises(RunNotFound):
            await purchase.result(t.runtime, "unknown")


async def test_a_stage_is_retried_as_a_step() -> None:
    class Flaky(Stages[str]):
        @stage
        async def first(self, step: Step, word: str) -> str:
            if step.attempt == 1:
                step.effects.put("dropped", b"")
                raise TransientError("not yet")
            step.effects.put("kept", word.encode())
            return word * step.attempt

    flaky = Flaky()
    async with bed(flaky) as t:
        assert await ended(t, flaky, flaky.first("ab")) == "abab"
        assert (await t.queue.kv.get("dropped"), await t.queue.kv.get("kept")) == (None, b"ab")


async def test_it_is_a_runner_like_others_for_several_revisions() -> None:
    class Old(Stages[str]):
        @stage
        async def begin(self, step: Step, word: str) -> Call:
            return self.finish(word).after(3600)

        @stage
        async def finish(self, step: Step, word: str) -> str:
            return f"{word} by {step.revision}"

    class New(Stages[str]):
        @stage
        async def begin(self, step: Step, word: str) -> str:
            return f"{word} at once"

    old, new, store = Old(), New(), MemoryStore()
    async with bed(None, workflows=[Workflow("w", old, "1")], store=store) as t:
        await old.submit(t.runtime, old.begin("a"), run_id="a", workflow="w")
        await old.submit(t.runtime, old.begin("b"), run_id="b", workflow="w")
        await t.settle()
        clock = t.clock
    # The code that knows the stage is still there; then it is not, and its runs are taken over.
    both = [Workflow("w", old, "1"), Workflow("w", new, "2")]
    async with bed(None, workflows=both, store=store, clock=clock) as t:
        await new.submit(t.runtime, new.begin("c"), run_id="c", workflow="w")
        await t.end("c")
        assert await new.result(t.runtime, "c") == "c at once"
        await t.end("a", within=3600)
        assert await old.result(t.runtime, "a") == "a by 1"
    async with bed(None, workflows=[Workflow("w", old, "1")], store=store, clock=clock) as t:
        await old.submit(t.runtime, old.begin("d"), run_id="d", workflow="w")
        await t.settle()
    takes_over = [Workflow("w", new, "2", accepts=["w@1"])]
    async with bed(None, workflows=takes_over, store=store, clock=clock) as t:
        end = await t.end("d")
        assert end.termination.error_kind is ErrorKind.PERMANENT
        assert end.termination.error is not None
        assert end.termination.error.startswith(
            "New, revision 1, has no stage 'finish'; it has begin. Keep stages as long as"
        )


async def test_what_does_not_decode_any_more_ends_the_run_and_says_why() -> None:
    store = MemoryStore()

    class Old(Stages[str]):
        @stage
        async def first(self, step: Step, value: str) -> str:
            raise NotImplementedError

    class New(Stages[str]):
        @stage
        async def first(self, step: Step, value: int) -> str:
            raise NotImplementedError

    async with bed(None, store=store) as t:
        await Old().submit(t.runtime, Old().first("word"), run_id="r")
        await t.runtime.submit(b"something else", run_id="s")
        clock = t.clock
    async with bed(New(), store=store, clock=clock) as t:
        for run_id, message in (("r", "is no int"), ("s", "does not name a stage")):
            end = await t.end(run_id)
            assert end.termination.error_kind is ErrorKind.PERMANENT
            assert message in (end.termination.error or "")


async def test_results_and_arguments_are_of_their_types() -> None:
    class Wrong(Stages[int]):
        @stage
        async def give(self, step: Step, value: Any) -> Any:
            return value

        @stage
        async def uncalled(self, step: Step, value: int) -> Any:
            return self.give

    wrong = Wrong()
    async with bed(wrong) as t:
        calls = [*map(wrong.give, ("word", None, [1])), wrong.uncalled(1)]
        for number, call in enumerate(calls):
            run_id = f"r{number}"
            await wrong.submit(t.runtime, call, run_id=run_id)
            end = await t.end(run_id)
            assert end.termination.error_kind is ErrorKind.PERMANENT
    with pytest.raises(SerializationError):
        Purchase().charge("book")  # type: ignore[arg-type]
    with pytest.raises(SerializationError):
        Purchase().confirm([1])  # type: ignore[list-item]


async def test_any_type_that_pydantic_knows() -> None:
    @dataclass
    class Point:
        x: int
        y: float

    class Anything(Stages[dict[str, Point]]):
        @stage
        async def first(self, step: Step, value: tuple[Point, bytes, None]) -> dict[str, Point]:
            return {value[1].decode(): value[0]}

    anything = Anything()
    async with bed(anything) as t:
        result = await ended(t, anything, anything.first((Point(1, float("inf")), b"k", None)))
        assert result == {"k": Point(1, float("inf"))}


async def test_without_a_result_type_plain_values_are_stored() -> None:
    class Plain(Stages[Any]):
        @stage
        async def first(self, step: Step, value: int) -> Any:
            return None if value == 0 else {"value": [value, b"raw"]}

    class Bare(Stages):  # type: ignore[type-arg]
        @stage
        async def first(self, step: Step, value: int) -> Any:
            return {"value": [value, b"raw"]}

    plain, bare = Plain(), Bare()
    async with bed(plain) as t:
        assert await ended(t, plain, plain.first(0), "a") is None
    async with bed(bare) as t:
        assert await ended(t, bare, bare.first(1), "b") == {"value": [1, b"raw"]}


async def test_a_subclass_replaces_adds_and_takes_away_stages() -> None:
    class Cautious(Purchase):
        @stage
        async def charge(self, step: Step, order: Order) -> Call | Fail:
            return self.check(order) if order.price > 10 else Fail("too little")

        @stage
        async def check(self, step: Step, order: Order) -> Receipt:
            return Receipt(text="checked", attempt=0)

        confirm = None  # type: ignore[assignment]

    cautious = Cautious()
    async with bed(cautious) as t:
        receipt = await ended(t, cautious, cautious.charge(Order(item="x", price=11)))
        assert receipt == Receipt(text="checked", attempt=0)
        with pytest.raises(InvalidArgument, match="Cautious has no stage 'confirm'"):
            await cautious.submit(t.runtime, Purchase().confirm(["a"]))


async def test_what_a_run_cannot_begin_with() -> None:
    purchase = Purchase()
    call = purchase.charge(Order(item="x", price=1))
    async with bed(None) as t:
        for first in (call.after(1), call.after(0)):
            with pytest.raises(InvalidArgument, match="can neither have a delay"):
                await purchase.submit(t.runtime, first)
        for other in (b"bytes", Order(item="x", price=1), purchase.charge, Continue(b"")):
            with pytest.raises(InvalidType, match="begins with the call of a stage"):
                await purchase.submit(t.runtime, other)  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match="what wait"):
            purchase.result_of(Succeed())  # type: ignore[arg-type]


def test_stages_can_be_tested_alone_and_keep_their_docs() -> None:
    assert Purchase.charge.__doc__ == "Take the money."
    assert Purchase.charge.name == "charge"
    assert repr(Purchase().charge) == "<stage Purchase.charge>"
    call = Purchase().confirm(["a"])
    assert (call.stage, call.data) == ("confirm", b'["a"]')
    assert call.after(5).outcome() == Continue(call.payload, after=5)


def test_methods_that_cannot_be_stages() -> None:
    with pytest.raises(InvalidType, match="stage 'sync' must be an async method"):

        @stage  # type: ignore[arg-type]
        def sync(self: Any, step: Step, value: int) -> int:
            return value

    with pytest.raises(InvalidType, match="must take self, a step and one argument"):

        @stage  # type: ignore[arg-type]
        async def short(self: Any, step: Step) -> int:
            return 1

    with pytest.raises(InvalidType, match="parameter 'value' of stage 'untyped' needs a type"):

        class Untyped(Stages[int]):
            @stage
            async def untyped(self, step: Step, value) -> int:  # type: ignore[no-untyped-def]
                return 1

    with pytest.raises(InvalidType, match="nothing that pydantic can handle"):

        class Odd(Stages[int]):
            @stage
            async def odd(self, step: Step, value: Bed) -> int:
                return 1

    class Unknown(Stages[int]):
        @stage
        async def first(self, step: Step, value: Nowhere) -> int:  # type: ignore[name-defined]  # noqa: F821
            return 1

    with pytest.raises(InvalidType, match="the type of parameter 'value' of stage 'first'"):
        Unknown().first(1)


class Later(Stages["Answer"]):  # its types are defined further down
    @stage
    async def first(self, step: Step, value: Question) -> Answer:
        return Answer(len(value.text))


@dataclass
class Question:
    text: str


@dataclass
class Answer:
    length: int


async def test_types_may_be_defined_after_the_class(caplog: pytest.LogCaptureFixture) -> None:
    later = Later()
    async with bed(later) as t:
        assert await ended(t, later, later.first(Question("why"))) == Answer(3)
        assert (await t.end("r")).termination.status is TerminalStatus.SUCCEEDED
    assert not [x for x in caplog.records if x.levelno >= logging.WARNING]
