"""What is counted, when, and what log records tell of their job."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from taquba import Delivery, Effects, PermanentError, Queue, QueueConfig, TaqubaError
from taquba.errors import InvalidArgument
from taquba.logs import JobContextFilter, current_job
from taquba.metrics import INSTRUMENTS, Kind
from taquba.objectstore import RetryingStore
from taquba.objectstore import RetryPolicy as StorePolicy
from taquba.queue import QueueTransaction
from taquba.testing import FaultyStore, InMemoryMetrics
from tests.queue.harness import NO_BACKOFF, World, take

pytestmark = pytest.mark.anyio


def jobs(metrics: InMemoryMetrics, queue: str = "q") -> dict[str, float]:
    """Counters of jobs that are not zero, by their short names."""
    found: dict[str, float] = {}
    for x in INSTRUMENTS:
        if x.name.startswith("taquba_jobs_") and (n := metrics.total(x.name, queue=queue)):
            found[x.name.removeprefix("taquba_jobs_").removesuffix("_total")] = n
    return found


@pytest.fixture
async def world():
    world = World()
    yield world
    await world.close()


async def test_each_way_through_the_queue_is_counted(world: World) -> None:
    metrics = InMemoryMetrics()
    queue = await world.open(metrics=metrics, config=QueueConfig(backoff_base=0, max_attempts=2))
    await queue.enqueue_many("q", [b"1", b"2", b"3", b"4"])
    await queue.enqueue("q", b"5", dedup_key="k")
    await queue.enqueue("q", b"6", dedup_key="k")  # not counted
    await queue.ack(await take(queue), Effects().enqueue("other", b"x"))
    await queue.nack(await take(queue), "no")
    dead = await take(queue)
    await queue.nack(dead, "no")  # its second attempt
    await queue.dead_letter(await take(queue), "never")
    await queue.requeue_dead(dead.job.id)
    scheduled = await queue.enqueue("q", b"7", delay=60)
    await queue.cancel(scheduled.job_id)
    assert jobs(metrics) == {
        "enqueued": 6,
        "claimed": 4,
        "completed": 1,
        "nacked": 1,
        "dead_lettered": 2,
        "requeued": 1,
        "removed": 1,
    }
    assert jobs(metrics, "other") == {"enqueued": 1}
    assert len(metrics.values("taquba_enqueue_duration_seconds", queue="q")) == 4
    assert len(metrics.values("taquba_claim_duration_seconds", queue="q")) == 4
    assert len(metrics.values("taquba_ack_duration_seconds", queue="q")) == 1


async def test_what_is_rolled_back_is_not_counted(world: World) -> None:
    metrics = InMemoryMetrics()
    queue = await world.open(metrics=metrics)
    await queue.enqueue("q", b"1", job_id="taken")
    claim = await take(queue)
    before = dict(metrics.counters)
    with pytest.raises(TaqubaError):
        await queue.ack(claim, Effects().enqueue("q", b"2").enqueue("q", b"3", job_id="taken"))
    endings: list[Callable[[QueueTransaction], object]] = [
        lambda tx: tx.ack(claim),
        lambda tx: tx.nack(claim, "no"),
        lambda tx: tx.release(claim),
        lambda tx: tx.dead_letter(claim, "no"),
        lambda tx: tx.take_back(claim._lease, "lease expired"),
        lambda tx: tx.cancel("taken"),
    ]
    for end in endings:
        with pytest.raises(ZeroDivisionError), queue.transaction() as tx:
            end(tx)
            raise ZeroDivisionError
    assert jobs(metrics) == {"enqueued": 1, "claimed": 1}
    after = {k: v for k, v in metrics.counters.items() if "store" not in k[0]}
    assert after == {k: v for k, v in before.items() if "store" not in k[0]}
    assert metrics.values("taquba_ack_duration_seconds", queue="q") == []


async def test_expired_leases_and_released_jobs_are_counted(world: World) -> None:
    metrics = InMemoryMetrics()
    queue = await world.open(metrics=metrics, config=QueueConfig(max_attempts=2, lease=10))
    await queue.enqueue("q", b"1")
    for _ in range(2):
        await take(queue)
        world.clock.stall(11)
        assert queue.reap_due() == 1
    assert jobs(metrics) == {"enqueued": 1, "claimed": 2, "reaped": 1, "dead_lettered": 1}
    assert metrics.total("taquba_leases_expired_total", queue="q") == 2


async def test_retries_of_the_store_are_counted(world: World) -> None:
    """Those of the journal, which tries for ever, and those of a store that tries by itself."""
    metrics = InMemoryMetrics()
    store = FaultyStore(world.store)
    policy = StorePolicy(first_delay=0.01)
    retrying = RetryingStore(store, clock=world.clock, policy=policy)
    queue = await Queue.open(retrying, clock=world.clock, metrics=metrics)
    before = metrics.total("taquba_store_retries_total")
    store.fail("create", "journal/", times=2)
    enqueuing = asyncio.ensure_future(queue.enqueue("q", b""))
    await world.clock.advance(60)
    await enqueuing
    assert metrics.total("taquba_store_retries_total") == before + 2
    await queue.close()
    plain = InMemoryMetrics()
    queue = await Queue.open(store, clock=world.clock, metrics=plain)
    store.fail("create", "journal/", times=2)
    enqueuing = asyncio.ensure_future(queue.enqueue("q", b""))
    await world.clock.advance(60)
    await enqueuing
    assert plain.total("taquba_store_retries_total") == 2
    await queue.close()


async def test_beats_that_are_not_stored_are_counted(world: World) -> None:
    metrics = InMemoryMetrics()
    await world.open(metrics=metrics, heartbeat=20)
    await world.clock.advance(41)
    assert metrics.total("taquba_heartbeat_failures_total") == 0
    world.wire.hold()
    await world.clock.advance(45)
    assert metrics.total("taquba_heartbeat_failures_total") >= 1
    world.wire.release()
    await world.clock.advance(0)


async def test_a_renewal_to_the_same_expiry_is_not_counted(world: World) -> None:
    """R20: only what moves the expiry counts."""
    metrics = InMemoryMetrics()
    queue = await world.open(metrics=metrics)
    await queue.enqueue("q", b"1")
    claim = await take(queue, lease=30)
    claim.renew(30)
    claim.ensure_at_least(1)
    assert metrics.total("taquba_lease_renewals_total") == 0
    claim.renew(60)
    claim.ensure_at_least(90)
    assert metrics.total("taquba_lease_renewals_total", queue="q") == 2


async def test_a_worker_is_counted_as_calls_are(world: World) -> None:
    metrics = InMemoryMetrics()
    queue = await world.open(metrics=metrics, config=NO_BACKOFF)
    await queue.enqueue_many("q", [b"good", b"bad"])

    async def handle(delivery: Delivery) -> None:
        if delivery.payload == b"bad":
            raise PermanentError("no")

    async with queue.worker("q", handle):
        pass
    assert jobs(metrics) == {"enqueued": 2, "claimed": 2, "completed": 1, "dead_lettered": 1}
    assert len(metrics.values("taquba_ack_duration_seconds", queue="q")) == 2
    assert len(metrics.values("taquba_claim_duration_seconds", queue="q")) >= 1


async def test_recovery_counts_nothing_and_gauges_know_the_state(world: World) -> None:
    first = await world.open()
    await first.enqueue_many("q", [b"1", b"2"])
    await take(first)
    metrics = InMemoryMetrics()
    await world.crash(metrics=metrics)
    assert jobs(metrics) == {}
    assert metrics.gauge("taquba_pending_jobs", queue="q") == 2
    await world.bury()


async def test_what_is_not_measured_costs_no_call(world: World) -> None:
    """Nor does it go through a block that does nothing."""
    calls: list[str] = []

    def profiled(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls.append(Path(frame.f_code.co_filename).name)

    for metrics in (None, InMemoryMetrics()):
        queue = await world.open(metrics=metrics)
        sys.setprofile(profiled)
        await queue.enqueue("q", b"")
        await queue.enqueue_many("q", [b""])
        await queue.ack(await take(queue))
        await queue.nack(await take(queue), "no")
        sys.setprofile(None)
        found = {"_measuring.py", "_observer.py", "contextlib.py"}.intersection(calls)
        assert bool(found) == (metrics is not None)


async def test_a_follower_counts_nothing(world: World) -> None:
    from taquba import Follower

    metrics = InMemoryMetrics()
    queue = await world.open(metrics=metrics)
    await queue.enqueue("q", b"1")
    async with Follower.open(world.store, clock=world.clock) as follower:
        assert (await follower.stats("q")).pending == 1
    assert jobs(metrics) == {"enqueued": 1}


async def test_gauges_are_read_when_asked_for(world: World) -> None:
    """R18, R19: three pending jobs show as 3; the age goes by the clock, and is 0 without jobs."""
    metrics = InMemoryMetrics()
    queue = await world.open(metrics=metrics)
    await queue.enqueue_many("q", [b"1", b"2", b"3"])
    await queue.enqueue("q", b"4", delay=3600)
    now = metrics.gauge("taquba_oldest_pending_age_seconds", queue="q")
    await world.clock.advance(60)
    assert metrics.gauge("taquba_oldest_pending_age_seconds", queue="q") == (now or 0) + 60
    assert metrics.gauge("taquba_pending_jobs", queue="q") == 3
    assert metrics.gauge("taquba_scheduled_jobs", queue="q") == 1
    for claim in await queue.claim_many("q", 3):
        await queue.ack(claim)
    assert metrics.gauge("taquba_oldest_pending_age_seconds", queue="q") == 0
    assert metrics.gauges == {}  # nobody asked for an interval
    await queue.close()
    assert metrics.gauge("taquba_pending_jobs", queue="q") is None


async def test_another_thread_may_ask_for_gauges(world: World) -> None:
    metrics = InMemoryMetrics()
    queue = await world.open(metrics=metrics)
    await queue.enqueue("q", b"1")
    asked = asyncio.to_thread(metrics.gauge, "taquba_pending_jobs", queue="q")
    assert await asked == 1
    assert metrics.values("taquba_event_loop_lag_seconds")


async def test_an_interval_tells_gauges_and_lag(world: World) -> None:
    """R19: sampled."""
    metrics = InMemoryMetrics()
    queue = await world.open(metrics=metrics, metrics_interval=10)
    await queue.enqueue_many("q", [b"1", b"2", b"3"])
    await world.clock.advance(0)
    world.clock.stall(12)
    await world.clock.advance(0)
    assert metrics.gauges["taquba_pending_jobs", (("queue", "q"),)] == 3
    assert metrics.values("taquba_event_loop_lag_seconds") == [2.0]


async def test_commits_store_requests_and_checkpoints_are_measured(world: World) -> None:
    metrics = InMemoryMetrics()
    queue = await world.open(metrics=metrics)
    before = metrics.total("taquba_store_requests_total", operation="create", result="ok")
    await queue.enqueue("q", b"1")
    assert metrics.total("taquba_store_requests_total", operation="create") == before + 1
    assert len(metrics.values("taquba_commit_duration_seconds")) >= 1
    assert metrics.total("taquba_commit_bytes_total") > 0
    await queue._core.database.checkpoint()
    assert len(metrics.values("taquba_checkpoint_duration_seconds")) == 1
    assert metrics.total("taquba_checkpoint_bytes_total") > 0
    assert metrics.total("taquba_store_bytes_written_total") >= metrics.total(
        "taquba_checkpoint_bytes_total"
    )


async def test_labels_are_bounded_by_the_names_of_queues(world: World) -> None:
    metrics = InMemoryMetrics()
    queue = await world.open(metrics=metrics)
    for i in range(50):
        await queue.enqueue("ab"[i % 2], b"x", headers={"n": str(i)})
        await queue.ack(await take(queue, "ab"[i % 2]))
    by_name = {x.name: x for x in INSTRUMENTS}
    for name, labels in (*metrics.counters, *metrics.histograms):
        assert [key for key, _ in labels] == sorted(by_name[name].labels)
        assert dict(labels).get("queue", "a") in "ab"
    assert len(by_name) == len(INSTRUMENTS)
    assert all((x.kind is Kind.COUNTER) == x.name.endswith("_total") for x in INSTRUMENTS)


async def test_metrics_that_fail_stop_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def add(self, *_: Any) -> None:
            raise ZeroDivisionError

        record = set = add

        def observe(self, sample: Any) -> None: ...

        def forget(self, sample: Any) -> None: ...

    queue = await world.open(metrics=Broken())
    await queue.enqueue("q", b"1")
    await queue.ack(await take(queue))
    assert sum("metrics failed" in x.message for x in caplog.records) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"metrics": object()},
        {"metrics": InMemoryMetrics},
        {"tracing": object()},
        {"metrics_interval": 1},
        {"metrics_interval": 0, "metrics": InMemoryMetrics()},
        {"metrics_interval": "x", "metrics": InMemoryMetrics()},
    ],
)
async def test_bad_options_are_refused(world: World, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        await world.open(**options)


async def test_log_records_tell_their_job(world: World, caplog: pytest.LogCaptureFixture) -> None:
    queue = await world.open(config=QueueConfig(max_attempts=1))
    own = logging.getLogger("app")
    shown = JobContextFilter()
    caplog.handler.addFilter(shown)
    caplog.set_level(logging.INFO)

    async def handle(delivery: Delivery) -> None:
        own.info("in the handler")
        await asyncio.create_task(asyncio.to_thread(own.info, "in a thread"))
        raise ValueError("no")

    enqueued = await queue.enqueue("q", b"1")
    try:
        async with queue.worker("q", handle):
            pass
        own.info("outside")
    finally:
        caplog.handler.removeFilter(shown)
    wanted = (enqueued.job_id, "q", 1)
    told = {record.message: fields_of(record) for record in caplog.records}
    assert told["in the handler"] == told["in a thread"] == wanted
    assert told[f"the handler of job {enqueued.job_id} failed"] == wanted
    assert told["outside"] == (None, None, None)
    assert current_job() is None


def fields_of(record: logging.LogRecord) -> tuple[object, ...]:
    names = ("taquba_job_id", "taquba_queue", "taquba_attempt")
    return tuple(record.__dict__[name] for name in names)


async def test_expiry_is_logged_with_the_job(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await world.open(config=QueueConfig(lease=1))
    job_id = (await queue.enqueue("q", b"1")).job_id
    await take(queue)
    world.clock.stall(2)
    queue.reap_due()
    [record] = [x for x in caplog.records if "expired" in x.message]
    assert fields_of(record) == (job_id, "q", 1)


def test_opentelemetry_is_not_imported_with_taquba() -> None:
    code = "import sys, taquba; sys.exit(any(x.startswith('opentelemetry') for x in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_documentation_has_every_instrument() -> None:
    page = Path("docs/how-to/observe.md").read_text(encoding="utf-8")
    rows = [
        f"| `{x.name}` | {x.kind.value}, {x.unit} | {', '.join(x.labels)} | {x.description} |"
        for x in INSTRUMENTS
    ]
    assert [row for row in rows if row not in page] == []
