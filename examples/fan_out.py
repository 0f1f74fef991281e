"""A step fans out over a group of runs, and its run goes on when the last of them has ended.

    $ python examples/fan_out.py
    order, attempt 1: submitted 3 parcels
    order, attempt 2: submitted 3 parcels
    packed pen
    packed book
    packed lamp
    order goes on when its parcels have ended
    lamp is out of stock
    2 parcels on their way, 1 failed

The step dies after it has submitted the group, and is run again. It submits the same group again,
whose id is made of the run's: that is no second group, and no parcel is packed twice. While the
parcels are packed, the order is no task and holds no worker: the group sends it a signal, in the
transaction that ends the last parcel.
"""

from __future__ import annotations

import asyncio

from taquba import Queue, QueueConfig
from taquba.workflow import (
    Continue,
    Fail,
    GroupMember,
    Outcome,
    RunGroup,
    Step,
    Succeed,
    TransientError,
    Workflow,
    WorkflowRuntime,
)

runtime: WorkflowRuntime


def parcels_of(step: Step) -> RunGroup:
    return runtime.group(
        f"{step.run_id}-parcels",
        signal_when_finished=f"parcels/{step.run_id}",
    )


async def order(step: Step) -> Outcome:
    parcels = parcels_of(step)
    if step.number == 0:
        wanted = step.payload.decode().split(",")
        await parcels.submit(GroupMember(item, item.encode(), workflow="parcel") for item in wanted)
        print(f"order, attempt {step.attempt}: submitted {len(wanted)} parcels")
        if step.attempt == 1:
            raise TransientError("died here")
        return Continue(signal=f"parcels/{step.run_id}")

    print("order goes on when its parcels have ended")
    ends = await parcels.gather()
    for end in ends:
        if end.outcome.error is not None:
            print(end.outcome.error)
    status = await parcels.status()
    return Succeed(f"{status.succeeded} parcels on their way, {status.failed} failed".encode())


async def pack(step: Step) -> Outcome:
    item = step.payload.decode()
    await asyncio.sleep({"pen": 0.1, "book": 0.2, "lamp": 0.3}[item])
    print(f"packed {item}")
    return Fail(f"{item} is out of stock") if item == "lamp" else Succeed()


async def main() -> None:
    global runtime
    workflows = [Workflow("order", order), Workflow("parcel", pack)]
    async with (
        Queue.open("memory://", config=QueueConfig(backoff_base=0.01)) as queue,
        WorkflowRuntime(queue, workflows=workflows) as runtime,
    ):
        await runtime.submit(b"pen,book,lamp", run_id="order-7", workflow="order")
        end = await runtime.wait("order-7")
    print((end.outcome.result or b"").decode())


if __name__ == "__main__":
    asyncio.run(main())
