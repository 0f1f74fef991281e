"""``python -m tests.stress``: 200,000 jobs over 50 queues, in processes that are killed 20 times.

Prints what happened as one JSON line, and exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from taquba import Queue
from tests.stress.judge import Verdict, judge
from tests.stress.session import CONFIG, Session, Work, look


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--queues", type=int, default=50)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--session", nargs=2, metavar=("FOLDER", "LOG"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = Work(jobs=options.jobs, queues=options.queues)
    if options.session is not None:
        folder, log = options.session
        logging.getLogger("taquba").setLevel(logging.ERROR)  # handlers fail on purpose
        asyncio.run(_live(work, folder, Path(log), str(options.seed)))
        return 0
    with tempfile.TemporaryDirectory(prefix="taquba-stress-") as home:
        verdict, figures = run_all(Path(home), work, kills=options.kills, seed=options.seed)
    print(json.dumps(figures))
    for wrong in verdict.wrong[:20]:
        print(wrong, file=sys.stderr)
    return bool(verdict.wrong)


async def _live(work: Work, folder: str, log: Path, seed: str) -> None:
    """What a process of its own does."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    started = 0
    step = max(work.jobs // 400, 10)

    def tell(line: str) -> None:
        nonlocal started
        os.write(output, line.encode() + b"\n")
        if line.startswith("started"):
            started += 1
            if started % step == 0:
                print(started, flush=True)

    async with Queue.open(folder, config=CONFIG) as queue:
        await Session(queue, work, seed=seed, tell=tell).run()
    os.close(output)
    print("finished", flush=True)


def run_all(
    home: Path, work: Work, *, kills: int, seed: int
) -> tuple[Verdict, dict[str, float | int]]:
    """Sessions one after the other, all killed but the last; what came of it."""
    folder, log = home / "store", home / "log"
    random = Random(seed)
    began = time.perf_counter()
    killed = 0
    command = [sys.executable, "-m", "tests.stress", "--jobs", str(work.jobs)]
    command += ["--queues", str(work.queues), "--session", str(folder), str(log)]
    while True:
        # In lines of progress: they come 400 times in the whole, retries apart.
        lives = random.randint(1, max(2 * min(400, work.jobs // 10) // (kills + 1), 1))
        with subprocess.Popen(
            [*command, "--seed", str(seed * 1000 + killed)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            said = ""
            for said in process.stdout:
                lives -= 1
                if lives <= 0 and killed < kills and said != "finished\n":
                    process.send_signal(signal.SIGKILL)
                    break
        if process.returncode == 0:
            break
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"a session ended with {process.returncode}, saying {said!r}")
        killed += 1
    seconds = time.perf_counter() - began

    async def see() -> Verdict:
        async with Queue.open(folder, config=CONFIG) as queue:
            return judge(work, _whole_lines(log), await look(queue, work))

    verdict = asyncio.run(see())
    figures = {
        "jobs": work.jobs,
        "queues": work.queues,
        "kills": killed,
        "seconds": round(seconds, 1),
        "wrong": len(verdict.wrong),
        **{what.replace(" ", "_"): verdict.counts[what] for what in sorted(verdict.counts)},
    }
    return verdict, figures


def _whole_lines(log: Path) -> list[str]:
    return log.read_text().splitlines()


if __name__ == "__main__":
    sys.exit(main())
