"""A run asks a person, and waits: for minutes or months, without a process that would wait with it.

An agent looks into a complaint, proposes a refund, and needs somebody's decision. Each command
here is a process of its own that ends at once; what is left in between is in the store. A decision
reaches the run that waits for it, also if that has no process at the moment, and also if it was
made before anybody asked.

    $ python examples/durable_approvals.py --store first start
    evidence: the parcel was lost
    evidence: the customer has been with us for 7 years
    proposal: refund 75 EUR
    waiting for a decision, and ending
    $ python examples/durable_approvals.py --store first approve
    delivered
    refunding 75 EUR
    succeeded: refunded 75 EUR

One that is made before is buffered, and the run does not wait.

    $ python examples/durable_approvals.py --store second reject "too much"
    buffered, for when somebody asks
    $ python examples/durable_approvals.py --store second start
    …
    proposal: refund 75 EUR
    failed: not refunded: too much

If nobody decides in time, the run goes on without. What comes too late waits for the next run
that asks, unless it is discarded.

    $ python examples/durable_approvals.py --store third --timeout 1 start
    …
    waiting for a decision, and ending
    $ python examples/durable_approvals.py --store third --sleep 1 start
    nobody decided: escalating
    failed: nobody decided in time
    $ python examples/durable_approvals.py --store third approve
    buffered, for when somebody asks
    failed: nobody decided in time
    $ python examples/durable_approvals.py --store third clear
    1 decision was discarded
"""

from __future__ import annotations

import argparse
import asyncio
import json

from taquba import Queue
from taquba.workflow import (
    Continue,
    Fail,
    Outcome,
    SignalOutcome,
    Step,
    Succeed,
    TerminalStatus,
    WorkflowRuntime,
)

RUN = "refund-7"
DECISION = f"decision/{RUN}"


class Agent:
    """The runner. Its steps: gather evidence, propose and ask, act on the decision."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout

    async def run_step(self, step: Step) -> Outcome:
        if step.number == 0:
            for question in ("the parcel", "the customer"):
                found = await step.memo.memoized(question, lambda asked=question: look_into(asked))
                print(f"evidence: {found}")
            return Continue(b"75")
        if step.number == 1:
            print(f"proposal: refund {step.payload.decode()} EUR")
            return Continue(step.payload, signal=DECISION, timeout=self.timeout)
        return await self.act(step, step.payload.decode())

    async def act(self, step: Step, amount: str) -> Outcome:
        if step.signal is None:
            print("nobody decided: escalating")
            step.effects.enqueue("escalations", RUN.encode())
            return Fail("nobody decided in time")
        decision = json.loads(step.signal)
        if not decision["approved"]:
            return Fail(f"not refunded: {decision['reason']}")
        # What cannot be undone must not be done twice: if an attempt died after it may have paid,
        # a person has to look.
        if await step.memo.get("about to pay") is not None:
            return Fail("an earlier attempt may have paid already: look before you try again")
        await step.memo.put("about to pay", amount.encode())
        print(f"refunding {amount} EUR")
        return Succeed(f"refunded {amount} EUR".encode())


async def look_into(question: str) -> str:
    """Stands for a slow and expensive call."""
    await asyncio.sleep(0.01)
    if question == "the parcel":
        return "the parcel was lost"
    return "the customer has been with us for 7 years"


async def until_it_ends_or_waits(runtime: WorkflowRuntime) -> None:
    """Let the run go on as far as it can, and say how far that was."""
    while True:
        status = await runtime.status(RUN)
        if status is None:
            return  # it was not started yet
        if status.termination is not None:
            break
        if status.waiting_for is not None:
            print("waiting for a decision, and ending")
            return
        await asyncio.sleep(0.01)
    end = await runtime.wait(RUN)
    text = end.outcome.error or (end.outcome.result or b"").decode()
    word = "succeeded" if end.termination.status is TerminalStatus.SUCCEEDED else "failed"
    print(f"{word}: {text}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", default="approvals-state", help="a folder, or s3://bucket/path")
    parser.add_argument("--timeout", type=float, default=300, help="seconds to wait for a decision")
    parser.add_argument("--sleep", type=float, default=0, help="seconds to sleep before all else")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("start", help="start the run, or go on with it")
    commands.add_parser("approve")
    commands.add_parser("reject").add_argument("reason")
    commands.add_parser("clear", help="discard decisions that nobody has asked for yet")
    options = parser.parse_args()
    await asyncio.sleep(options.sleep)
    async with (
        Queue.open(options.store) as queue,
        WorkflowRuntime(queue, Agent(options.timeout)) as runtime,
    ):
        if options.command == "clear":
            count = await runtime.clear_signal(DECISION)
            print(f"{count} decision was discarded" if count else "there was nothing to discard")
            return
        if options.command == "start":
            known = await runtime.status(RUN)
            if known is None:
                await runtime.submit(b"the parcel has not arrived", run_id=RUN)
        else:
            approved = options.command == "approve"
            decision = {"approved": approved, "reason": getattr(options, "reason", None)}
            sent = await runtime.signal(DECISION, json.dumps(decision).encode())
            if sent.outcome is SignalOutcome.BUFFERED:
                print("buffered, for when somebody asks")
            else:
                print("delivered")
        await until_it_ends_or_waits(runtime)


if __name__ == "__main__":
    asyncio.run(main())
