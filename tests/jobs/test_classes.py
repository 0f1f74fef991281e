"""Jobs that are classes: their fields are the arguments."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, PrivateAttr, SecretStr

from taquba.clock import SystemClock
from taquba.errors import (
    InputMismatch,
    InvalidArgument,
    InvalidType,
    JobFailed,
    SerializationError,
)
from taquba.jobs import BlockingJobContext, Call, JobContext, job, payload_idempotency_key
from tests.jobs.functions import Charge, Lengths, Mailer, Pid, Receipt, send_email
from tests.jobs.harness import World, ended, settle

pytestmark = pytest.mark.anyio


@pytest.fixture
def world() -> World:
    return World()


async def test_an_object_is_submitted_and_run(world: World) -> None:
    mailer = Mailer()
    async with world.runner(Charge, send_email, state=[mailer]) as jobs:
        handle = await jobs.submit(Charge(order=0))
        assert await ended(world, handle) == Receipt(to="order 0", number=1)
        assert repr(handle) == f"<JobHandle {handle.job_id} of 'charge'>"
    async with world.runner() as jobs:
        assert await jobs.handle(Charge, handle.job_id).fetch_result() == Receipt(
            to="order 0", number=1
        )
    assert mailer.sent == ["order 0: 100"]


async def test_a_class_has_its_own_key_and_classification(world: World) -> None:
    mailer = Mailer(failures=100)
    async with world.runner(Charge, state=[mailer]) as jobs:
        first = await jobs.submit(Charge(order=7, cents=0))
        assert first.job_id == jobs.handle_of_key(Charge, "order 7").job_id
        await settle(world)
        with pytest.raises(JobFailed, match="refused") as caught:
            await first.result(timeout=0)
        assert caught.value.permanent
        assert not (await jobs.submit(Charge(order=7, cents=0))).created
        with pytest.raises(InputMismatch):
            await jobs.submit(Charge(order=7, cents=1))
        other = await jobs.submit(Charge(order=7, cents=1), idempotency_key="other")
        with pytest.raises(JobFailed, match="the bank is closed") as caught:
            await ended(world, other)
        assert not caught.value.permanent
    assert mailer.sent == ["order 7: 0", *["order 7: 1"] * 3]


async def test_a_class_runs_in_a_thread_with_a_key_of_its_fields(world: World) -> None:
    world.clock = SystemClock()
    async with world.runner(Lengths) as jobs:
        handle = await jobs.submit(Lengths(["a", "bcd"], raw=b"\xff\x00"))
        assert await handle == {"a": 1, "bcd": 3}
        again = await jobs.submit(Lengths(["a", "bcd"], raw=b"\xff\x00"))
        other = await jobs.submit(Lengths(["a", "bcd"]))
        assert (again.created, again.job_id == handle.job_id) == (False, True)
        assert other.created


async def test_a_class_runs_in_another_process() -> None:
    world = World()
    world.clock = SystemClock()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        async with world.runner(Pid, executors={"cpu": pool}) as jobs:
            import os

            pid, data = await (await jobs.submit(Pid(b"\xff")))
            assert (pid != os.getpid(), data) == (True, b"\xff")


async def test_a_class_is_called_directly() -> None:
    mailer = Mailer()
    context = JobContext.detached(state=[mailer])
    assert await Charge(order=3).run(context) == Receipt(to="order 3", number=1)
    assert Lengths(["ab"]).run(BlockingJobContext.detached()) == {"ab": 2}


async def test_state_of_an_object_that_is_no_field_stays_here(world: World) -> None:
    @job("private")
    class Private(BaseModel):
        number: int
        kind: ClassVar[str] = "k"
        _note: str = PrivateAttr("none")

        async def run(self, ctx: JobContext) -> str:
            return f"{self.number} {self.kind} {self._note}"

    async with world.runner(Private) as jobs:
        given = Private(number=1)
        given._note = "written"
        assert await ended(world, await jobs.submit(given)) == "1 k none"


def test_known_answer_of_payload_keys() -> None:
    """JOB-26: equal calls have equal keys, which begin with the name; others have others."""
    key = payload_idempotency_key(send_email("a"))
    assert key == ("email.send:2156820fb3dc3e75c99db67fa45c566a8fa78537ae7bdf92a92cb3040c309256")
    assert key == payload_idempotency_key(send_email("a", "(none)"))
    assert key != payload_idempotency_key(send_email("b"))
    name, _, digest = payload_idempotency_key(Lengths(["a"])).partition(":")
    assert (name, len(digest)) == ("lengths", 64)
    assert payload_idempotency_key(Lengths(["b"])).partition(":")[2] != digest
    with pytest.raises(InvalidType, match="the call of a job"):
        payload_idempotency_key(send_email)  # type: ignore[arg-type]


async def test_keys_that_a_job_makes(world: World) -> None:
    keys: list[Any] = ["", "first", None, 7]

    def next_key(call: Call[Any]) -> Any:
        assert call.arguments == {"number": 1}
        return keys.pop(0)

    @job("keyed", idempotency_key=next_key)
    async def keyed(ctx: JobContext, number: int) -> int:
        return number

    async with world.runner(keyed) as jobs:
        assert (await jobs.submit(keyed(1))).job_id == jobs.handle_of_key(keyed, "").job_id
        assert (await jobs.submit(keyed(1))).job_id == jobs.handle_of_key(keyed, "first").job_id
        assert len((await jobs.submit(keyed(1))).job_id) == 26
        with pytest.raises(InvalidType, match="idempotency_key must be a str, not 7"):
            await jobs.submit(keyed(1))


async def test_fields_are_checked_at_the_submission(world: World) -> None:
    @job("secret")
    class Secret(BaseModel):
        token: SecretStr

        async def run(self, ctx: JobContext) -> None:
            raise NotImplementedError

    async with world.runner(Lengths, Charge, Secret) as jobs:
        with pytest.raises(InvalidType, match="job 'lengths': "):
            await jobs.submit(Lengths("word"))  # type: ignore[arg-type]
        with pytest.raises(SerializationError, match="cannot be stored as Charge"):
            await jobs.submit(Charge.model_construct(order="x"))
        with pytest.raises(SerializationError, match="would not come back as they are"):
            await jobs.submit(Secret(token=SecretStr("s")))
        assert await jobs.runtime.backlog() == []


async def test_what_is_no_object_of_a_job_is_refused(world: World) -> None:
    @dataclass
    class Inherits(Lengths):
        pass

    async with world.runner(Lengths) as jobs:
        with pytest.raises(InvalidType, match="needs a decorator of its own"):
            await jobs.submit(Inherits(["a"]))
        with pytest.raises(InvalidType, match=r"call it, with its arguments: submit\(Lengths\(…"):
            await jobs.submit(Lengths)  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match="a job is a function or a class"):
            jobs.handle(Inherits, "id")


def test_classes_that_cannot_be_jobs() -> None:
    def refused(message: str, kind: type, **options: Any) -> None:
        with pytest.raises((InvalidType, InvalidArgument), match=message):
            job("x", **options)(kind)

    class Plain:
        async def run(self, ctx: JobContext) -> None: ...

    @dataclass
    class NoRun:
        run: int = 1

    @dataclass
    class More:
        async def run(self, ctx: JobContext, more: int) -> None: ...

    @dataclass
    class Fine:
        number: int = 1

        async def run(self, ctx: JobContext) -> None: ...
        def retry_if(self, error: Exception) -> bool:
            raise NotImplementedError

    refused("must be a dataclass or a pydantic model", Plain)
    refused("needs a method 'run'", NoRun)
    refused("must take the object and a context", More)
    refused("has a method 'retry_if'", Fine, retry_if=lambda error: True)
    refused("is async, so it runs on the event loop", Fine, executor="cpu")
    refused("max_attempts is 0", Fine, max_attempts=0)


async def test_fields_that_have_names_like_the_options(world: World) -> None:
    @job("odd")
    @dataclass
    class Odd:
        idempotency_key: str
        retry_if: bool = False
        later: list[int] = field(default_factory=list[int])

        async def run(self, ctx: JobContext) -> str:
            return f"{self.idempotency_key} {self.retry_if} {self.later}"

    async with world.runner(Odd) as jobs:
        handle = await jobs.submit(Odd("k"))
        assert await ended(world, handle) == "k False []"
        assert len(handle.job_id) == 26


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
async def test_all_kinds_of_dataclass(world: World, slots: bool, frozen: bool) -> None:
    class Kind:
        number: float

        async def run(self, ctx: JobContext) -> str:
            return repr(self.number)

    made: Any = job("kinds")(dataclass(slots=slots, frozen=frozen)(Kind))
    async with world.runner(made) as jobs:
        for number in (1.5, float("nan"), float("-inf")):
            assert await ended(world, await jobs.submit(made(number))) == repr(number)
