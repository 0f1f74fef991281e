# pyright: strict, reportArgumentType=true, reportCallIssue=true
# pyright: reportUnnecessaryTypeIgnoreComment=true
"""What type checkers say of stages; mypy and pyright check this file, nobody runs it.

Each line with an ignored error is a test: it fails where there is nothing to ignore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

from taquba.stages import BoundStage, Call, Stages, stage
from taquba.workflow import Cancel, Fail, Step, WorkflowRuntime
from tests.stages.workflows import Order, Purchase, Receipt


async def check(purchase: Purchase, runtime: WorkflowRuntime, step: Step) -> None:
    assert_type(purchase.charge, BoundStage[Order, Call | Fail | Cancel])
    assert_type(purchase.charge(Order(item="book", price=1)), Call)
    assert_type(await purchase.result(runtime, "r"), Receipt)
    assert_type(await purchase.confirm.run(step, ["a"]), Receipt)
    purchase.charge(["book"])  # type: ignore[arg-type]
    purchase.confirm(Order(item="book", price=1))  # type: ignore[arg-type]
    purchase.charge()  # type: ignore[call-arg]
    await purchase.submit(runtime, Order(item="book", price=1))  # type: ignore[arg-type]
    await purchase.confirm.run(step, [1])  # type: ignore[list-item]


if TYPE_CHECKING:

    class WithoutStep(Stages[Receipt]):
        @stage  # type: ignore[arg-type]
        async def first(self, data: str) -> Receipt:
            raise NotImplementedError

    class NotAsync(Stages[Receipt]):
        @stage  # type: ignore[arg-type]
        def first(self, step: Step, data: str) -> Receipt:
            raise NotImplementedError
