"""Measurements and spans, as OpenTelemetry's SDK has them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, MutableMapping
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from taquba import Dead, Delivery, Effects, QueueConfig, Retry
from taquba._msgpack import pack
from taquba.errors import InvalidArgument
from taquba.metrics import Measurement
from taquba.opentelemetry import OpenTelemetryMetrics, OpenTelemetryTracing
from taquba.queue._measuring import stamp
from taquba.tracing import Operation
from taquba.workflow import Outcome, Step, WorkflowRuntime
from tests.queue.harness import NO_BACKOFF, World, take

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world():
    world = World()
    yield world
    await world.close()


class Traces:
    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")
        self.tracing = OpenTelemetryTracing(provider, **options)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [x for x in self.exporter.get_finished_spans() if x.name == name]


async def nothing(delivery: Delivery) -> None:
    pass


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


async def test_the_handler_of_another_process_is_linked_to_the_enqueue(world: World) -> None:
    traces = Traces()
    first = await world.open(tracing=traces.tracing)
    with traces.tracer.start_as_current_span("request") as request:
        job = await first.enqueue("q", b"secret", headers={"mine": "kept"})
    [enqueue] = traces.spans("enqueue q")
    assert enqueue.kind is SpanKind.PRODUCER
    assert enqueue.parent == request.get_span_context()
    later = Traces()
    second = await world.crash(tracing=later.tracing)
    async with second.worker("q", nothing):
        pass
    [handle] = later.spans("process q")
    [link] = handle.links
    assert link.context.span_id == context_of(enqueue).span_id
    assert link.context.trace_id == context_of(enqueue).trace_id
    assert handle.parent is None
    assert handle.kind is SpanKind.CONSUMER
    assert dict(handle.attributes or {}) == {
        "messaging.system": "taquba",
        "messaging.operation.name": "process",
        "messaging.destination.name": "q",
        "messaging.message.id": job.job_id,
        "taquba.attempt": 1,
    }
    [settle] = later.spans("settle q")
    assert settle.parent is not None
    assert settle.parent.span_id == context_of(handle).span_id
    shown = "".join(x.to_json() for x in later.exporter.get_finished_spans())
    assert "secret" not in shown
    await world.bury()


async def test_all_can_be_one_trace(world: World) -> None:
    traces = Traces(relation="parent")
    queue = await world.open(tracing=traces.tracing)
    await queue.enqueue_many("q", [b"1", b"2"])
    async with queue.worker("q", nothing):
        pass
    [enqueue] = traces.spans("enqueue q")
    assert (enqueue.attributes or {})["messaging.batch.message_count"] == 2
    handled = traces.spans("process q")
    assert [x.parent.span_id for x in handled if x.parent] == [context_of(enqueue).span_id] * 2
    with pytest.raises(InvalidArgument):
        OpenTelemetryTracing(relation="x")


async def test_jobs_that_a_handler_enqueues_are_linked_to_it(world: World) -> None:
    traces = Traces()
    queue = await world.open(tracing=traces.tracing)

    async def handle(delivery: Delivery) -> Effects:
        delivery.effects.enqueue("next", b"2")
        return Effects().enqueue("next", b"3")

    await queue.enqueue("q", b"1")
    async with queue.worker("q", handle):
        pass
    async with queue.worker("next", nothing):
        pass
    [first] = traces.spans("process q")
    followed = traces.spans("process next")
    assert [x.links[0].context.span_id for x in followed] == [context_of(first).span_id] * 2


async def test_a_failure_is_recorded_and_own_headers_are_kept(world: World) -> None:
    traces = Traces()
    queue = await world.open(tracing=traces.tracing, config=QueueConfig(max_attempts=1))

    async def handle(delivery: Delivery) -> None:
        raise ValueError("no")

    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with traces.tracer.start_as_current_span("a request"):  # which is not what was asked for
        await queue.enqueue("q", b"1", headers={"traceparent": given})
    async with queue.worker("q", handle):
        pass
    [handled] = traces.spans("process q")
    assert handled.status.status_code is StatusCode.ERROR
    assert handled.events[0].name == "exception"
    assert format(handled.links[0].context.span_id, "x") == "b7ad6b7169203331"


@pytest.mark.parametrize("what", ["retry", "dead", "step"])
async def test_a_failure_that_is_said_and_not_raised_is_recorded(world: World, what: str) -> None:
    traces = Traces()
    queue = await world.open(tracing=traces.tracing, config=QueueConfig(max_attempts=1))
    if what == "step":

        async def runner(step: Step) -> Outcome:
            raise ValueError("no")

        async with WorkflowRuntime(queue, runner, queue_name="q") as runtime:
            await runtime.submit(b"", run_id="r")
            await runtime.wait("r")
    else:

        async def handle(delivery: Delivery) -> Retry | Dead:
            return Retry(ValueError("no")) if what == "retry" else Dead("no")

        await queue.enqueue("q", b"1")
        async with queue.worker("q", handle):
            pass
    [handled] = traces.spans("process q")
    assert handled.status.status_code is StatusCode.ERROR
    assert "no" in (handled.status.description or "")
    assert [event.name for event in handled.events] == ([] if what == "dead" else ["exception"])


class Broken:
    """A tracing of which one method fails."""

    def __init__(self, method: str) -> None:
        self._method = method

    def _do(self, method: str) -> None:
        if method == self._method:
            raise ZeroDivisionError(method)

    def inject(self, headers: MutableMapping[str, str]) -> None:
        headers["traceparent"] = "half of it"
        self._do("inject")

    def fail(self, span: object, error: BaseException | str) -> None:
        self._do("fail")

    @contextmanager
    def span(self, operation: Operation, parent: object = None) -> Generator[object]:
        self._do("begin")
        yield object()
        self._do("end")


def test_contexts_are_not_mixed() -> None:
    class Both(Broken):
        def inject(self, headers: MutableMapping[str, str]) -> None:
            headers.update(traceparent="new", tracestate="new")

    own = pack({"traceparent": "own"})
    assert stamp(Both("nothing"), own) is own


@pytest.mark.parametrize("method", ["inject", "begin", "end", "fail"])
async def test_tracing_that_fails_harms_nobody(
    world: World, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    queue = await world.open(tracing=Broken(method), config=NO_BACKOFF)

    async def handle(delivery: Delivery) -> Retry | None:
        return Retry("once more") if delivery.attempt == 1 else None

    await queue.enqueue_many("q", [b"1", b"2"])
    async with queue.worker("q", handle):
        await world.clock.advance(0)
    assert (await queue.stats("q")).done == 2
    told = [record for record in caplog.records if "tracing fails" in record.message]
    assert len(told) == 1


async def test_gauges_are_read_once_a_collection(world: World) -> None:
    reader = InMemoryMetricReader()
    metrics = OpenTelemetryMetrics(MeterProvider([reader]))
    await world.open(metrics=metrics)
    reads = 0
    [sample] = metrics._gauges.samples

    def counting() -> Iterable[Measurement]:
        nonlocal reads
        reads += 1
        return sample()

    metrics._gauges.samples[:] = [counting]
    for collections in (1, 2, 3):
        reader.get_metrics_data()
        assert reads == collections
    metrics._gauges.samples[:] = [sample]


async def test_headers_without_room_are_left_as_they_are(world: World) -> None:
    queue = await world.open(tracing=Traces().tracing)
    full = {"h": "x" * (64 * 1024 - 1)}
    await queue.enqueue("q", b"1", headers=full)
    claim = await take(queue)
    assert claim.job.headers == full
    await queue.ack(claim)


async def test_readers_collect_counters_histograms_and_gauges(world: World) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    queue = await world.open(metrics=OpenTelemetryMetrics(provider))
    await queue.enqueue_many("q", [b"1", b"2", b"3"])
    await queue.ack(await take(queue))
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, Any] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            if dict(point.attributes or {}) in ({"queue": "q"}, {}):
                found[metric.name] = point
    assert found["taquba_jobs_enqueued_total"].value == 3
    assert found["taquba_pending_jobs"].value == 2
    assert found["taquba_claimed_jobs"].value == 0
    assert found["taquba_ack_duration_seconds"].count == 1
    assert found["taquba_commit_duration_seconds"].explicit_bounds[0] == 0.001
    await queue.close()
    provider.shutdown()
