# pyright: basic, reportMissingImports=false
"""DBOS on SQLite: async workflows and steps, called in the process that runs them.

The file is in WAL mode, which is faster than what DBOS leaves it in, with `synchronous=FULL`: each
commit syncs the log.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from pathlib import Path

from _workloads import Side, Sizes, arguments, say, since_start, work
from dbos import DBOS, DBOSClient

began = 0.0
done = 0


@DBOS.step()
async def a_step() -> int:
    global done
    done += 1
    return 1


@DBOS.workflow()
async def steps_of(count: int) -> int:
    return sum([await a_step() for _ in range(count)])


@DBOS.workflow()
async def parent_of(count: int) -> int:
    handles = [await DBOS.start_workflow_async(steps_of, 1) for _ in range(count)]
    return sum([await handle.get_result() for handle in handles])


@DBOS.workflow()
async def pending_one() -> int:
    global done
    if not done:
        say(first_s=time.perf_counter() - began, since_start_s=since_start())
    done += 1
    return 1


class Dbos(Side):
    async def run(self, steps: int) -> int:
        return await steps_of(steps)

    async def fan_out(self, children: int) -> int:
        return await parent_of(children)

    async def steps_done(self) -> int:
        return done


def launch(folder: Path, *, listens: bool = True) -> str:
    """Make the file, in WAL mode, if it is absent, and open it."""
    file = folder / "dbos.sqlite"
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA journal_mode=WAL")
    url = f"sqlite:///{file}"
    DBOS(
        config={
            "name": "peer",
            "system_database_url": url,
            "log_level": "ERROR",
            "application_version": "1",
            "executor_id": "local",
        }
    )
    if not listens:
        DBOS.listen_queues([])
    DBOS.launch()
    return url


def durability() -> str:
    """What the connections that DBOS itself uses are set to."""
    from dbos._dbos import _get_dbos_instance

    with _get_dbos_instance()._sys_db.engine.connect() as connection:
        mode, synchronous = (
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous")
        )
    level = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}[synchronous]
    return f"SQLite, journal_mode={mode}, synchronous={level}"


async def works(folder: Path, sizes: Sizes) -> None:
    launch(folder)
    await work(Dbos(), sizes)
    say(durability=durability())
    with sqlite3.connect(folder / "dbos.sqlite") as database:
        (kept,) = database.execute(
            "SELECT count(*) FROM operation_outputs WHERE function_name LIKE '%a_step'"
        ).fetchone()
    if kept != done:
        raise AssertionError(f"{done} steps have run, and {kept} are in the database")
    DBOS.destroy()


def leaves(folder: Path, sizes: Sizes) -> None:
    url = launch(folder, listens=False)
    DBOS.register_queue("pending", worker_concurrency=16, polling_interval_sec=0.05)
    client = DBOSClient(system_database_url=url)
    with client._sys_db.engine.begin() as connection:
        for _ in range(sizes.pending):
            client.enqueue_in_transaction(
                connection,
                {"queue_name": "pending", "workflow_name": "pending_one", "app_version": "1"},
            )
    say(pending=len(DBOS.list_queued_workflows(load_input=False)))
    os._exit(0)  # as if it were killed: nothing is closed


async def first(folder: Path) -> None:
    global began
    began = time.perf_counter()
    launch(folder)
    while not done:
        await asyncio.sleep(0.002)
    os._exit(0)


if __name__ == "__main__":
    command, folder, sizes = arguments()
    if command == "work":
        asyncio.run(works(folder, sizes))
    elif command == "leave":
        leaves(folder, sizes)
    else:
        asyncio.run(first(folder))
