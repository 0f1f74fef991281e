"""Functions as durable jobs: typed arguments, typed results, an idempotency key, a process pool.

    $ python examples/typed_jobs.py --store jobs
    Hello, Alice!
    Hello, Bob!
    Hello, Carol!
    primes below 1,000: 168, counted in another process: True
    $ python examples/typed_jobs.py --store jobs
    Hello, Alice! (from before)
    Hello, Bob! (from before)
    Hello, Carol! (from before)
    primes below 1,000: 168, counted in another process: True

The second time the greetings are those of the first time: each has a key, under which it is done
once. The primes have none, and are counted again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from pydantic import BaseModel

from taquba import Queue
from taquba.jobs import JobContext, JobRunner, job
from taquba.queue import JobView


class Counted(BaseModel):
    primes: int
    process: int


@job("greet", max_attempts=5)
async def greet(ctx: JobContext, name: str) -> str:
    return f"Hello, {name}!"


@job("count-primes", executor="cpu")
def count_primes(view: JobView, below: int) -> Counted:
    primes = sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, below))
    return Counted(primes=primes, process=os.getpid())


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", default="jobs-state", help="folder or URL of the state")
    options = parser.parse_args()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        async with (
            Queue.open(options.store) as queue,
            JobRunner(queue, [greet, count_primes], executors={"cpu": pool}) as jobs,
        ):
            for name in ("Alice", "Bob", "Carol"):
                handle = await jobs.submit(greet(name), idempotency_key=f"greet {name}")
                print(await handle, *([] if handle.created else ["(from before)"]))
            counted = await (await jobs.submit(count_primes(1000)))
            elsewhere = counted.process != os.getpid()
            print(f"primes below 1,000: {counted.primes}, counted in another process: {elsewhere}")


if __name__ == "__main__":
    asyncio.run(main())
