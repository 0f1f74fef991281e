"""An order, whose state in the key-value store changes in the transactions of its run.

Each change of `orders/…` is an effect: of the submission, of a step, or of the terminal hook. It is
committed with what it belongs to, or not at all, so the state and the run never disagree,
wherever a process dies. The first attempt to charge fails after it has staged its effects: they
are dropped. What the order leads to outside, a mail, is a job on a queue of its own.

    $ python examples/order_flow.py
    submitted: the order is received, stock of tea: 3
    reserving 2 tea: stock is 1
    charging, attempt 1: the bank does not answer
    still reserved
    charging, attempt 2: charged 16 EUR
    mail to ann: your 2 tea are on their way
    the run succeeded
    order: fulfilled, stock: 1, pending: none

    $ python examples/order_flow.py --amount 5
    submitted: the order is received, stock of tea: 3
    the run failed: there are only 3
    order: refused, stock: 3, pending: none
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from taquba import Delivery, Effects, Queue, QueueConfig
from taquba.workflow import (
    Continue,
    Fail,
    Outcome,
    RunOutcome,
    Step,
    Succeed,
    TerminalStatus,
    TransientError,
    WorkflowRuntime,
)

ORDER, STOCK, PENDING = "orders/7", "stock/tea", "pending/7"


class Shop:
    """The runner, and the hook that ends the order."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    async def run_step(self, step: Step) -> Outcome:
        order: dict[str, Any] = json.loads(step.payload)
        if step.number == 0:
            return await self.reserve(step, order)
        return await self.charge(step, order)

    async def reserve(self, step: Step, order: dict[str, Any]) -> Outcome:
        # Steps may be run twice, so what they write is the new value, and never "one less".
        stock = int(await self.queue.kv.get(STOCK) or b"0")
        if order["amount"] > stock:
            return Fail(f"there are only {stock}")
        left = stock - order["amount"]
        print(f"reserving {order['amount']} tea: stock is {left}")
        step.effects.put(STOCK, str(left).encode()).put(ORDER, b"reserved")
        return Continue(step.payload)

    async def charge(self, step: Step, order: dict[str, Any]) -> Outcome:
        text = f"your {order['amount']} tea are on their way".encode()
        step.effects.put(ORDER, b"paid").enqueue("mail", text, headers={"to": order["customer"]})
        if step.attempt == 1:
            print("charging, attempt 1: the bank does not answer")
            raise TransientError("the bank does not answer")
        state = (await self.queue.kv.get(ORDER) or b"").decode()
        print(f"still {state}")
        print(f"charging, attempt {step.attempt}: charged {8 * order['amount']} EUR")
        return Succeed(step.payload)

    async def on_termination(self, outcome: RunOutcome, effects: Effects) -> None:
        fine = outcome.status is TerminalStatus.SUCCEEDED
        effects.put(ORDER, b"fulfilled" if fine else b"refused").delete(PENDING)


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", default="memory://", help="a folder, or s3://bucket/path")
    parser.add_argument("--amount", type=int, default=2)
    options = parser.parse_args()
    mailed = asyncio.Event()

    async def mail(delivery: Delivery) -> None:
        print(f"mail to {delivery.headers['to']}: {delivery.payload.decode()}")
        mailed.set()

    config = QueueConfig(backoff_base=0.01)
    async with Queue.open(options.store, config=config) as queue:
        await queue.kv.put(STOCK, b"3")
        order = {"customer": "ann", "amount": options.amount}
        async with WorkflowRuntime(queue) as front:  # takes orders, and runs none
            await front.submit(
                json.dumps(order).encode(),
                run_id="order-7",
                effects=Effects().put(ORDER, b"received").put(PENDING, b"1"),
            )
        state = (await queue.kv.get(ORDER) or b"").decode()
        print(f"submitted: the order is {state}, stock of tea: 3")
        shop = Shop(queue)
        async with (
            queue.worker("mail", mail),
            WorkflowRuntime(queue, shop, terminal_hook=shop) as runtime,
        ):
            end = await runtime.wait("order-7")
            if end.termination.status is TerminalStatus.SUCCEEDED:
                await mailed.wait()
            why = f": {end.outcome.error}" if end.outcome.error else ""
            print(f"the run {end.termination.status.value}{why}")
            while await queue.kv.get(PENDING) is not None:  # until the hook has ended the order
                await asyncio.sleep(0.01)
        state, stock = [(await queue.kv.get(key) or b"").decode() for key in (ORDER, STOCK)]
        print(f"order: {state}, stock: {stock}, pending: none")


if __name__ == "__main__":
    asyncio.run(main())
