"""Work on another machine answers through the bucket, and its answer goes on with the run.

The machine cannot be called, and cannot call: all that both have is the bucket. A step writes a
request there, and its run waits for a signal. The machine answers with another object; a watcher
beside the runtime looks for the answers that are due, and turns each into that signal. The
mark that says which are due is committed with the wait, so a crash loses no answer, and the
signal has an id, so the watcher may do everything twice.

    $ python examples/remote_reply.py --store state
    step 0: asked the other machine to shout "hello from afar"
    the other machine: answering r-1
    the watcher: there is an answer for r-1
    step 1: HELLO FROM AFAR
    the run succeeded
    objects left in the bucket: 0

With --crash the first process dies while the other machine works: the next one finds the answer.

    $ python examples/remote_reply.py --store crashed --crash
    step 0: asked the other machine to shout "hello from afar"
    (killed)
    the other machine: answering r-1
    $ python examples/remote_reply.py --store crashed
    the watcher: there is an answer for r-1
    step 1: HELLO FROM AFAR
    the run succeeded
    objects left in the bucket: 0
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from contextlib import suppress

from taquba import Queue, open_store
from taquba.errors import ObjectNotFound
from taquba.objectstore import ObjectStore
from taquba.workflow import Continue, Fail, Outcome, Step, Succeed, WorkflowRuntime

RUN = "r-1"


class Shouting:
    """The runner: asks the other machine, and takes its answer."""

    def __init__(self, exchange: ObjectStore) -> None:
        self.exchange = exchange

    async def run_step(self, step: Step) -> Outcome:
        if step.number == 0:
            print(f'step 0: asked the other machine to shout "{step.payload.decode()}"', flush=True)
            # A second attempt writes the same object again, which is fine.
            await self.exchange.put(f"requests/{step.run_id}", step.payload)
            step.effects.put(f"expected/{step.run_id}", b"")
            return Continue(signal=f"reply/{step.run_id}", timeout=30)
        await self.exchange.delete([f"requests/{step.run_id}", f"replies/{step.run_id}"])
        step.effects.delete(f"expected/{step.run_id}")
        if step.signal is None:
            return Fail("the other machine did not answer in time")
        print(f"step 1: {step.signal.decode()}")
        return Succeed(step.signal)


async def watch(queue: Queue, runtime: WorkflowRuntime, exchange: ObjectStore) -> None:
    """Turn answers into signals, for as long as runs wait for some."""
    told: set[str] = set()
    while True:
        async for key, _ in queue.kv.entries("expected/"):
            run_id = key.decode().removeprefix("expected/")
            with suppress(ObjectNotFound):
                answer = await exchange.get(f"replies/{run_id}")
                if run_id not in told:
                    told.add(run_id)
                    print(f"the watcher: there is an answer for {run_id}")
                # With its id, sending it again changes nothing.
                await runtime.signal(f"reply/{run_id}", answer, signal_id=run_id)
        await asyncio.sleep(0.05)


async def be_the_other_machine(exchange: ObjectStore) -> None:
    """What runs elsewhere: it answers every request that it finds, and ends."""
    while not (requests := [info.key async for info in exchange.list("requests/")]):
        await asyncio.sleep(0.02)
    for key in requests:
        run_id = key.removeprefix("requests/")
        print(f"the other machine: answering {run_id}", flush=True)
        await exchange.put(f"replies/{run_id}", (await exchange.get(key)).upper())


async def own(options: argparse.Namespace, exchange: ObjectStore) -> None:
    async with (
        Queue.open(options.store) as queue,
        WorkflowRuntime(queue, Shouting(exchange)) as runtime,
    ):
        await runtime.submit(b"hello from afar", run_id=RUN)
        if options.crash:
            while (status := await runtime.status(RUN)) is None or status.waiting_for is None:
                await asyncio.sleep(0.01)
            print("(killed)", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        watching = asyncio.create_task(watch(queue, runtime, exchange))
        end = await runtime.wait(RUN)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        print(f"the run {end.termination.status.value}")
    left = [info.key async for info in exchange.list("")]
    print(f"objects left in the bucket: {len(left)}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", default="remote-state", help="a folder, or s3://bucket/path")
    parser.add_argument("--crash", action="store_true", help="die while the other machine works")
    parser.add_argument("--role", choices=["both", "owner", "machine"], default="both")
    options = parser.parse_args()
    exchange = await open_store(f"{options.store}-exchange")
    try:
        match options.role:
            case "machine":
                await be_the_other_machine(exchange)
            case "owner":
                await own(options, exchange)
            case _:
                await play_both(options, exchange)
    finally:
        await exchange.close()


async def play_both(options: argparse.Namespace, exchange: ObjectStore) -> None:
    """Start a process for each of the two machines; here they are one."""
    command = [sys.executable, __file__, "--store", options.store, "--role"]
    crash = ["--crash"] if options.crash else []
    owner = await asyncio.create_subprocess_exec(*command, "owner", *crash)
    if options.crash:
        await owner.wait()
    if not [info async for info in exchange.list("replies/")]:
        machine = await asyncio.create_subprocess_exec(*command, "machine")
        await machine.wait()
    await owner.wait()


if __name__ == "__main__":
    asyncio.run(main())
