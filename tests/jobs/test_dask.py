"""Jobs whose functions run in the workers of a real Dask cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest

from taquba.clock import SystemClock
from taquba.jobs import BlockingJobContext, job
from taquba.queue import JobView
from tests.jobs.functions import Mailer
from tests.jobs.harness import World
from tests.queue.harness import counts

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(100)]


@job("heavy", executor="dask")
def heavy(view: JobView, numbers: list[int]) -> tuple[int, int]:
    return os.getpid(), sum(number**2 for number in numbers)


@job("murdered", executor="dask")
def murdered(view: JobView, pipe: str) -> tuple[int, int]:
    """Tells its process, and waits to be killed; the next attempt does not."""
    if view.attempt == 1:
        Path(pipe).write_text(str(os.getpid()))
        threading.Event().wait(60)
    return view.attempt, os.getpid()


@job("light")
def light(ctx: BlockingJobContext, word: str) -> int:
    ctx.state(Mailer).sent.append(word)
    return os.getpid()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import dask.config
    from distributed import Client, LocalCluster

    settings = {
        # A task whose worker dies is not tried again by Dask: the job is.
        "distributed.scheduler.allowed-failures": 0,
        "distributed.admin.system-monitor.gil.enabled": False,
    }
    with dask.config.set(settings):
        with LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster:
            with Client(cluster) as client:
                client.wait_for_workers(2)
                yield client


@pytest.fixture
def executor(cluster: Any) -> Iterator[Executor]:
    with cluster.get_executor() as executor:
        yield executor


@pytest.fixture
def world() -> World:
    world = World()
    world.clock = SystemClock()
    return world


async def test_functions_run_there_and_state_and_settlement_stay_here(
    world: World, cluster: Any, executor: Executor
) -> None:
    workers = set(cluster.run(os.getpid).values())
    assert len(workers) == 2
    mailer = Mailer()
    async with world.runner(heavy, light, state=[mailer], executors={"dask": executor}) as jobs:
        handles = [await jobs.submit(heavy(list(range(n)))) for n in range(20)]
        results = [await handle for handle in handles]
        assert [total for _, total in results] == [sum(i * i for i in range(n)) for n in range(20)]
        assert {pid for pid, _ in results} <= workers
        assert os.getpid() not in workers
        assert await (await jobs.submit(light("here"))) == os.getpid()
        assert await jobs.runtime._queue.stats("jobs@heavy") == counts(done=20)
    assert mailer.sent == ["here"]


async def test_a_worker_that_is_killed_means_another_attempt(
    world: World, executor: Executor, tmp_path: Path
) -> None:
    pipe = tmp_path / "pid"
    os.mkfifo(pipe)
    async with world.runner(murdered, executors={"dask": executor}) as jobs:
        handle = await jobs.submit(murdered(str(pipe)), max_attempts=2)
        victim = int(await asyncio.to_thread(pipe.read_text))
        assert victim != os.getpid()
        os.kill(victim, signal.SIGKILL)
        attempt, process = await handle
        assert attempt == 2
        assert process not in (victim, os.getpid())
