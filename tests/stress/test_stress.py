"""The stress run in small: it is the same code, with fewer jobs and kills."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from taquba.queue import Queue
from tests.simulation.network import FAIR, Process
from tests.simulation.shadow import ShadowStore
from tests.simulation.virtual_loop import run
from tests.simulation.worker_invariants import End
from tests.stress.__main__ import run_all
from tests.stress.judge import Verdict, judge
from tests.stress.session import CONFIG, Session, Work, look

pytestmark = [pytest.mark.timeout(180)]


def test_processes_that_are_killed_amid_their_work(tmp_path: Path) -> None:
    work = Work(jobs=1500, queues=10)
    verdict, figures = run_all(tmp_path, work, kills=3, seed=1)
    assert verdict.wrong == []
    assert figures["kills"] == 3
    assert verdict.counts["redelivered"] > 20
    assert verdict.counts["ended dead"] > 5


def test_thousands_of_jobs_over_fifty_queues_with_crashes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "taquba")
    work = Work(jobs=4000, queues=50)
    verdict, crashes = crashing(work, crashes=6, seed=2)
    assert verdict.wrong == []
    assert crashes == 6
    assert verdict.counts["redelivered"] > 100
    assert verdict.counts["ended done"] > 3900


def crashing(work: Work, *, crashes: int, seed: int) -> tuple[Verdict, int]:
    """The same in one process and in virtual time: what dies there, dies at some request."""
    random = Random(seed)
    store = ShadowStore()
    lines: list[str] = []
    ends: list[End] = []
    lives: list[Any] = []  # the dead are kept, so that their tasks are not collected
    died = 0

    async def live(process: Process, number: int) -> None:
        process.live_here()

        def tell(line: str) -> None:
            if not process.dead:
                lines.append(line)

        async with Queue.open(process.store, clock=process.clock, config=CONFIG) as queue:
            await Session(queue, work, seed=f"{seed}/{number}", tell=tell).run()
            ends.append(await look(queue, work))

    async def history() -> None:
        nonlocal died
        while True:
            death = asyncio.Event()

            def note(*event: Any, death: asyncio.Event = death) -> None:
                if event[1:] == ("dies",):
                    death.set()

            process = Process(f"p{died}", store, Random(f"{seed}/{died}"), FAIR, note)
            if died < crashes:
                process.requests_left = random.randint(10, 100)
            living = asyncio.ensure_future(live(process, died))
            lives.append((process, living))
            dying = asyncio.ensure_future(death.wait())
            await asyncio.wait([living, dying], return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            if living.done():
                living.result()
                return
            died += 1

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        raise AssertionError(context)

    run(history(), on_error)
    return judge(work, lines, ends[0]), died


def test_the_judge_notices() -> None:
    work = Work(jobs=2, queues=1)
    good = ["enqueued j0", "enqueued j1", "started j0 1 5", "settled j0", "started j1 1 5"]
    end = End(
        jobs={"j1": (4, 1, 5)},
        notes={"done/j0": "1,", "total/queue-0": "1"},
        done={"queue-0": 1},
    )
    assert judge(work, good, end).wrong == []
    assert judge(work, [*good, "started j0 2 5"], end).wrong
    assert judge(work, [*good, "started j1 1 5"], end).wrong
    assert judge(work, [*good, "started j1 6 5"], end).wrong
    assert judge(work, [*good, "settled j1"], end).wrong
    assert judge(work, good, End(jobs={}, notes=end.notes, done=end.done)).wrong
    twice = {**end.notes, "done/j0": "1,2,"}
    assert judge(work, good, End(jobs=end.jobs, notes=twice, done=end.done)).wrong
    assert judge(work, good, End(jobs=end.jobs, notes=end.notes, done={"queue-0": 2})).wrong
