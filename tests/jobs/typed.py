# pyright: strict, reportArgumentType=true, reportCallIssue=true
# pyright: reportUnnecessaryTypeIgnoreComment=true
"""What type checkers say of jobs; mypy and pyright check this file, nobody runs it.

Each line with an ignored error is a test: it fails where there is nothing to ignore.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_type

from taquba import Queue
from taquba.jobs import (
    BlockingJobContext,
    Call,
    JobContext,
    JobGroup,
    JobHandle,
    JobResult,
    JobRunner,
    job,
    payload_idempotency_key,
)
from tests.jobs.functions import (
    Charge,
    Lengths,
    Pid,
    Receipt,
    blocking,
    digest,
    greet,
    send_email,
)

Found = tuple[int, bytes]


async def check(
    queue: Queue, jobs: JobRunner, ctx: JobContext, blocking_ctx: BlockingJobContext
) -> None:
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
    # Functions themselves are typed, too.
    assert_type(await send_email.function(ctx, "a", subject="b"), Receipt)
    assert_type(blocking.function(blocking_ctx, ["a"]), dict[str, int])
    await send_email.function(ctx, 1)  # type: ignore[arg-type]
    blocking.function(ctx, ["a"])  # type: ignore[arg-type]
    # Classes.
    assert_type(await jobs.submit(Charge(order=1)), JobHandle[Receipt])
    assert_type(await (await jobs.submit(Lengths(["a"]))), dict[str, int])
    assert_type(await (await jobs.submit(Pid(b"a"))).fetch_result(), tuple[int, bytes] | None)
    assert_type(jobs.handle(Charge, "id"), JobHandle[Receipt])
    assert_type(jobs.handle_of_key(Lengths, "key"), JobHandle[dict[str, int]])
    assert_type(await Charge(order=1).run(ctx), Receipt)
    assert_type(payload_idempotency_key(Charge(order=1)), str)
    Lengths("word")  # type: ignore[arg-type]
    Pid()  # type: ignore[call-arg]
    await jobs.submit(Charge)  # type: ignore[arg-type]
    await jobs.submit(Receipt(to="a", number=1))  # type: ignore[arg-type]
    jobs.handle(Receipt, "id")  # type: ignore[arg-type]
    # Groups.
    assert_type(jobs.group("g"), JobGroup[Any])
    assert_type(jobs.group("g", Charge), JobGroup[Receipt])
    group = jobs.group("g", greet)
    assert_type(await group.join(), list[JobResult[str]])
    assert_type([each.value async for each in group.results()], list[str])
    await group.submit([greet("a")], key=lambda call: call.arguments["name"])
    await group.submit([blocking(["a"])])  # type: ignore[list-item]
    assert_type([value async for value in jobs.map(greet, ["a", "b"])], list[str])
    assert_type([each async for each in jobs.map(lambda n: digest(b"", n), range(3))], list[Found])
    jobs.map(greet, [1, 2])  # type: ignore[arg-type]
    jobs.map(digest, ["a"])  # type: ignore[arg-type]
    JobRunner(queue, [send_email, Charge, Lengths, Pid])
    JobRunner(queue, [Receipt])  # type: ignore[list-item]


if TYPE_CHECKING:

    @job("no-run")  # pyright: ignore[reportUntypedClassDecorator, reportArgumentType, reportCallIssue]
    @dataclass
    class WithoutRun:
        number: int

    @job("wrong-context")  # pyright: ignore[reportUntypedClassDecorator, reportArgumentType, reportCallIssue]
    @dataclass
    class WrongContext:
        number: int

        async def run(self, ctx: BlockingJobContext, other: int) -> int:
            raise NotImplementedError
