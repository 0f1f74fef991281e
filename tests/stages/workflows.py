"""A workflow as a class, which the tests of this folder share."""

from __future__ import annotations

from pydantic import BaseModel

from taquba.stages import Call, Stages, stage
from taquba.workflow import Cancel, Fail, Step

__all__ = ["Order", "Purchase", "Receipt"]


class Order(BaseModel):
    item: str
    price: int


class Receipt(BaseModel):
    text: str
    attempt: int


class Purchase(Stages[Receipt]):
    """Charges, waits for a day if it costs much, and confirms."""

    def __init__(self, currency: str = "EUR") -> None:
        self.currency = currency

    @stage
    async def charge(self, step: Step, order: Order) -> Call | Fail | Cancel:
        """Take the money."""
        if order.price < 0:
            return Fail("no price")
        if order.price == 0:
            return Cancel("nothing to pay")
        paid = await step.memo.memoized("paid", lambda: f"{order.price} {self.currency}")
        confirmation = self.confirm([order.item, paid])
        return confirmation.after(24 * 3600) if order.price > 1000 else confirmation

    @stage
    async def confirm(self, step: Step, words: list[str]) -> Receipt:
        return Receipt(text=" for ".join(words), attempt=step.attempt)
