from __future__ import annotations

import asyncio

from taquba.journal._supervisor import Supervisor
from tests.journal.harness import rounds, run


def test_a_task_that_crashes_is_reported() -> None:
    async def main() -> None:
        crashes: list[BaseException] = []
        supervisor = Supervisor(crashes.append)

        async def crash() -> None:
            raise ZeroDivisionError

        supervisor.start(crash(), name="crash")
        await rounds()
        assert [type(error) for error in crashes] == [ZeroDivisionError]
        await supervisor.stop()

    run(main())


def test_cancelling_spares_the_caller_and_starts_nothing_more() -> None:
    async def main() -> None:
        ran: list[str] = []
        supervisor = Supervisor(lambda error: None)

        async def wait_for_ever() -> None:
            await asyncio.Event().wait()

        async def end_the_others() -> None:
            supervisor.cancel()
            supervisor.start(note("late"), name="late")
            await rounds()
            ran.append("spared")

        async def note(what: str) -> None:
            ran.append(what)

        supervisor.start(wait_for_ever(), name="waits")
        supervisor.start(end_the_others(), name="ends")
        await rounds(50)
        assert ran == ["spared"]
        assert len(asyncio.all_tasks()) == 1

    run(main())
