# pyright: strict, reportArgumentType=true, reportCallIssue=true
# pyright: reportUnnecessaryTypeIgnoreComment=true
"""What type checkers say of jobs; mypy and pyright check this file, nobody runs it.

Each line with an ignored error is a test: it fails where there is nothing to ignore.
"""

from __future__ import annotations

from typing import assert_type

from taquba.jobs import Call, JobHandle, JobRunner
from tests.jobs.functions import Receipt, blocking, digest, greet, send_email


async def check(jobs: JobRunner) -> None:
    assert_type(send_email(to="a", subject="b"), Call[Receipt])
    assert_type(await jobs.submit(send_email("a")), JobHandle[Receipt])
    assert_type(await (await jobs.submit(greet("x"))), str)
    assert_type(await (await jobs.submit(blocking(["x"]))).fetch_result(), dict[str, int] | None)
    assert_type(await (await jobs.submit(digest(b"x", 2))).result(5), tuple[int, bytes])
    assert_type(jobs.handle(greet, "id"), JobHandle[str])
    send_email(to=1)  # type: ignore[arg-type]
    send_email("a", topic="b")  # type: ignore[call-arg]
    send_email()  # type: ignore[call-arg]
    blocking("word")  # type: ignore[arg-type]
    await jobs.submit(greet)  # type: ignore[arg-type]
    await jobs.submit(greet.function)  # type: ignore[arg-type]
