"""Measurements and traces for OpenTelemetry; needs the extra ``taquba[otel]``.

Example:
    >>> from opentelemetry import metrics, trace                     # doctest: +SKIP
    >>> queue = await Queue.open(                                    # doctest: +SKIP
    ...     "s3://bucket/app",
    ...     metrics=OpenTelemetryMetrics(),
    ...     tracing=OpenTelemetryTracing(),
    ... )

Only the API of OpenTelemetry is used: what is exported, where, and how often is for your
application to configure.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import cast, final

from taquba.errors import InvalidArgument, MissingDependency
from taquba.metrics import INSTRUMENTS, Instrument, Kind, Measurement, Sample
from taquba.tracing import Operation

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import (
        CallbackOptions,
        Counter,
        Histogram,
        MeterProvider,
        Observation,
    )
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise MissingDependency(
        "taquba.opentelemetry needs OpenTelemetry: pip install 'taquba[otel]'"
    ) from error

__all__ = ["OpenTelemetryMetrics", "OpenTelemetryTracing"]

_BOUNDARIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Seconds; OpenTelemetry's own default is meant for milliseconds."""


@final
class OpenTelemetryMetrics:
    """Hands measurements to OpenTelemetry. One object can serve several queues.

    Its gauges are read when a reader collects; `metrics_interval` is not needed for them.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        """Args:
        meter_provider: Default: the global one.
        """
        meter = metrics.get_meter("taquba", meter_provider=meter_provider)
        self._counters: dict[Instrument, Counter] = {}
        self._histograms: dict[Instrument, Histogram] = {}
        self._gauges = _Gauges()
        for x in INSTRUMENTS:
            match x.kind:
                case Kind.COUNTER:
                    self._counters[x] = meter.create_counter(x.name, x.unit, x.description)
                case Kind.HISTOGRAM:
                    self._histograms[x] = meter.create_histogram(
                        x.name,
                        x.unit,
                        x.description,
                        explicit_bucket_boundaries_advisory=_BOUNDARIES,
                    )
                case Kind.GAUGE:
                    meter.create_observable_gauge(
                        x.name, [_Observing(self._gauges, x)], x.unit, x.description
                    )

    def add(self, instrument: Instrument, amount: float, labels: Mapping[str, str]) -> None:
        """See `taquba.metrics.Metrics.add`."""
        self._counters[instrument].add(amount, labels)

    def record(self, instrument: Instrument, value: float, labels: Mapping[str, str]) -> None:
        """See `taquba.metrics.Metrics.record`."""
        self._histograms[instrument].record(value, labels)

    def set(self, instrument: Instrument, value: float, labels: Mapping[str, str]) -> None:
        """Nothing: gauges are read when they are collected."""

    def observe(self, sample: Sample) -> None:
        """See `taquba.metrics.Metrics.observe`."""
        self._gauges.samples.append(sample)

    def forget(self, sample: Sample) -> None:
        """See `taquba.metrics.Metrics.forget`."""
        self._gauges.samples.remove(sample)


class _Gauges:
    """The values of all gauges, read once a collection: when one is asked for that was told."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._values: list[Measurement] = []
        self._untold: set[Instrument] = set()

    def of(self, instrument: Instrument) -> list[Measurement]:
        if instrument not in self._untold:
            self._values = [value for sample in list(self.samples) for value in sample()]
            self._untold = {x for x in INSTRUMENTS if x.kind is Kind.GAUGE}
        self._untold.discard(instrument)
        return [value for value in self._values if value.instrument is instrument]


class _Observing:
    """The callback of one gauge."""

    def __init__(self, gauges: _Gauges, instrument: Instrument) -> None:
        self._gauges = gauges
        self._instrument = instrument

    def __call__(self, options: CallbackOptions) -> list[Observation]:
        return [Observation(x.value, x.labels) for x in self._gauges.of(self._instrument)]


@final
class OpenTelemetryTracing:
    """Makes spans with OpenTelemetry, and carries their context in the headers of jobs.

    ``enqueue NAME`` (producer) is a call that adds jobs, ``process NAME`` (consumer) one
    attempt at a job, and ``settle NAME`` the commit that ends it, where NAME is the queue's.
    Attributes follow the conventions for messaging; payloads are not recorded.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, *, relation: str = "link"
    ) -> None:
        """Args:
        tracer_provider: Default: the global one.
        relation: What the span of the enqueue is to that of the handler: ``"link"``, each
            attempt is a trace of its own; or ``"parent"``, all are in one trace.

        Raises:
            InvalidArgument: `relation` is neither.
        """
        if relation not in ("link", "parent"):
            raise InvalidArgument(f"relation is {relation!r}: give 'link' or 'parent'")
        self._tracer = trace.get_tracer("taquba", tracer_provider=tracer_provider)
        self._as_parent = relation == "parent"
        self._propagator = TraceContextTextMapPropagator()

    def inject(self, headers: MutableMapping[str, str]) -> None:
        """See `taquba.tracing.Tracing.inject`."""
        self._propagator.inject(headers)

    @contextmanager
    def span(self, operation: Operation, parent: object = None) -> Generator[Span]:
        """See `taquba.tracing.Tracing.span`."""
        context: Context | None = None
        links: list[Link] = []
        if isinstance(parent, Span):
            context = trace.set_span_in_context(parent, Context())
        elif operation.kind == "handle":
            # Whatever span is current where a worker began has nothing to do with this job.
            context = Context()
            enqueued = self._propagator.extract(cast("dict[str, str]", operation.headers or {}))
            found = trace.get_current_span(enqueued).get_span_context()
            if found.is_valid:
                if self._as_parent:
                    context = trace.set_span_in_context(trace.NonRecordingSpan(found), context)
                else:
                    links.append(Link(found))
        name, kind = _SPANS[operation.kind]
        with self._tracer.start_as_current_span(
            f"{name} {operation.queue}",
            context=context,
            kind=kind,
            links=links,
            attributes=_attributes(operation, name),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Exception as error:
                self.fail(span, error)
                raise

    def fail(self, span: object, error: BaseException | str) -> None:
        """See `taquba.tracing.Tracing.fail`."""
        if not isinstance(span, Span):
            return
        if isinstance(error, BaseException):
            span.record_exception(error)
            error = f"{type(error).__name__}: {error}"
        span.set_status(Status(StatusCode.ERROR, error))


_SPANS = {
    "enqueue": ("enqueue", SpanKind.PRODUCER),
    "handle": ("process", SpanKind.CONSUMER),
    "settle": ("settle", SpanKind.CLIENT),
}


def _attributes(operation: Operation, name: str) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": "taquba",
        "messaging.operation.name": name,
        "messaging.destination.name": operation.queue,
    }
    if operation.job_id is not None:
        attributes["messaging.message.id"] = operation.job_id
    if operation.attempt is not None:
        attributes["taquba.attempt"] = operation.attempt
    if operation.count is not None:
        attributes["messaging.batch.message_count"] = operation.count
    return attributes
