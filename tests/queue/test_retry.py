"""When a failed job comes back, and what is kept of its failure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taquba import (
    Effects,
    Job,
    JobState,
    Queue,
    QueueConfig,
    RetryPolicy,
    TransientError,
)
from taquba.errors import InvalidArgument
from taquba.queue import MAX_ERROR_LENGTH, MAX_TRACEBACK_LENGTH
from tests.queue.harness import NO_BACKOFF, World, read, started, take

pytestmark = pytest.mark.anyio


def delay(world: World, job: Job) -> float:
    """Seconds until a job becomes due."""
    return 0.0 if job.run_at is None else job.run_at.timestamp() - world.clock.now_ms() / 1000


async def failed(queue: Queue, error: Any = "no", **options: Any) -> Job:
    claim = await take(queue)
    await queue.nack(claim, error, **options)
    return await read(queue, claim.job.id)


# -- jitter ---------------------------------------------------------------------------------


async def test_delays_are_spread_evenly(world: World) -> None:
    queue = await world.open(config=QueueConfig(backoff_base=100, backoff_max=100))
    await queue.enqueue_many("q", [b""] * 300)
    delays = [delay(world, await failed(queue)) for _ in range(300)]
    assert 0 <= min(delays) < 3 and 97 < max(delays) <= 100
    tenths = [sum(10 * n <= each < 10 * n + 10 for each in delays) for n in range(10)]
    assert min(tenths) > 15, tenths


def test_a_delay_is_between_nothing_and_the_largest() -> None:
    policy = RetryPolicy(base=2, max=60)
    assert [policy.delay_ms(3, chance) for chance in (0.0, 0.5, 0.999999)] == [0, 4000, 8000]
    assert RetryPolicy(base=2, max=60, jitter=False).delay_ms(3, 0.5) == 8000


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"base": -1}, "base"),
        ({"max": "long"}, "max"),
        ({"jitter": 1}, "jitter"),
        ({"base": float("nan")}, "base"),
    ],
)
def test_a_policy_that_is_none(options: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        RetryPolicy(**options)
    named = {"jitter": "jitter"}.get(complaint, f"backoff_{complaint}")
    with pytest.raises(InvalidArgument, match=complaint):
        QueueConfig(**{named: next(iter(options.values()))})


# -- a job's own policy ---------------------------------------------------------------------


async def test_a_job_s_own_policy_wins_and_survives(world: World) -> None:
    queue = await world.open()
    policy = RetryPolicy(base=7, max=60, jitter=False)
    job_id = (await queue.enqueue("q", b"", max_attempts=9, retry=policy)).job_id
    assert delay(world, await failed(queue)) == 7
    queue = await world.crash()
    assert (await read(queue, job_id)).retry == policy
    await world.clock.advance(7)
    assert delay(world, await failed(queue)) == 14


async def test_every_way_of_enqueueing_takes_a_policy(world: World, queue: Queue) -> None:
    policy = RetryPolicy(base=7, jitter=False)
    await queue.enqueue("q", b"", effects=Effects().enqueue("q", b"", retry=policy))
    await queue.enqueue_many("q", [b"", b""], retry=policy)
    assert [delay(world, await failed(queue)) for _ in range(4)] == [1, 7, 7, 7]
    wrong: Any = 5
    with pytest.raises(InvalidArgument, match="RetryPolicy"):
        await queue.enqueue("q", b"", retry=wrong)


# -- what a service asks for ----------------------------------------------------------------


async def test_a_wish_is_a_lower_bound(world: World, queue: Queue) -> None:
    await queue.enqueue_many("q", [b""] * 4)
    now = datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC)
    assert delay(world, await failed(queue, retry_after=30)) == 30
    assert delay(world, await failed(queue, retry_after=0.5)) == 1
    assert delay(world, await failed(queue, retry_at=now + timedelta(minutes=2))) == 120
    assert delay(world, await failed(queue, retry_at=now - timedelta(days=1))) == 1


async def test_an_error_may_say_when_to_try_again(world: World, queue: Queue) -> None:
    await queue.enqueue_many("q", [b""] * 3)
    now = datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC)
    assert delay(world, await failed(queue, TransientError("busy", retry_after=40))) == 40
    error = TransientError("busy", retry_at=now + timedelta(hours=1))
    assert delay(world, await failed(queue, error)) == 3600
    assert delay(world, await failed(queue, error, retry_after=5)) == 5


@pytest.mark.parametrize("wish", [{"retry_after": -1}, {"retry_at": datetime(2030, 1, 1)}])  # noqa: DTZ001
async def test_a_wish_that_is_none(
    world: World, queue: Queue, wish: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Given by the caller it is refused; in an error it must not lose the failure itself."""
    await queue.enqueue("q", b"")
    claim = await take(queue)
    with pytest.raises(InvalidArgument):
        await queue.nack(claim, "no", **wish)
    assert claim.is_live
    await queue.nack(claim, TransientError("busy", **wish))
    assert delay(world, await read(queue, claim.job.id)) == 1
    assert "says when to try again" in caplog.text


async def test_a_worker_heeds_it(world: World, queue: Queue) -> None:
    async def handler(_: Any) -> Any:
        raise TransientError("busy", retry_after=timedelta(minutes=3))

    job_id = (await queue.enqueue("q", b"")).job_id
    worker = queue.engine("q", handler)
    running = await started(world, worker.run())
    assert delay(world, await read(queue, job_id)) == 180
    worker.stop()
    await running


# -- what is kept of a failure --------------------------------------------------------------


def broken() -> Exception:
    try:
        try:
            {}["key"]
        except KeyError as error:
            raise re.error("no pattern") from error
    except re.error as error:
        return error
    raise AssertionError


async def test_type_and_traceback_are_kept(world: World) -> None:
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue("q", b"", max_attempts=2)
    job = await failed(queue, broken())
    assert (job.last_error, job.error_type) == ("no pattern", "re.error")
    assert job.traceback is not None
    assert job.traceback.startswith("Traceback") and job.traceback.endswith("no pattern\n")
    assert "KeyError: 'key'" in job.traceback and "in broken" in job.traceback
    job = await failed(queue, "just a text")
    assert (job.state, job.last_error) == (JobState.DEAD, "just a text")
    assert (job.error_type, job.traceback) == (None, None)
    queue = await world.crash()
    await queue.requeue_dead(job.id)
    claim = await take(queue)
    await queue.dead_letter(claim, ValueError("bad"))
    job = await read(queue, claim.job.id)
    assert (job.error_type, job.last_error) == ("ValueError", "bad")
    await queue.requeue_dead(job.id)
    fresh = await read(queue, job.id)
    assert (fresh.error_type, fresh.traceback, fresh.last_error) == (None, None, None)


async def test_long_errors_are_cut(world: World) -> None:
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue("q", b"", max_attempts=9)
    job = await failed(queue, "x" * MAX_ERROR_LENGTH)
    assert job.last_error == "x" * MAX_ERROR_LENGTH
    job = await failed(queue, "x" * (MAX_ERROR_LENGTH + 1))
    assert job.last_error == "x" * MAX_ERROR_LENGTH + "… (1 characters more)"
    job = await failed(queue, ValueError("y" * 10 * MAX_TRACEBACK_LENGTH + "end"))
    assert job.traceback is not None
    assert job.traceback.endswith("yend\n")
    assert MAX_TRACEBACK_LENGTH < len(job.traceback) < MAX_TRACEBACK_LENGTH + 50


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "error", [Unspeakable(), ValueError("\ud800"), ExceptionGroup("g", [OSError()])]
)
async def test_whatever_an_exception_is_it_is_kept(world: World, error: Exception) -> None:
    queue = await world.open(config=NO_BACKOFF)
    await queue.enqueue("q", b"")
    job = await failed(queue, error)
    assert job.last_error and job.error_type and job.traceback
