"""Bad input: a typed error that names the thing, and nothing is written.

Among much else A5, A6, A16, A17, H13, K5, P12 and P15.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from taquba import Claim, Queue, QueueConfig
from taquba.errors import (
    InvalidArgument,
    InvalidJobId,
    InvalidQueueName,
    InvalidType,
    InvalidUrl,
    TaqubaError,
    ValueTooLarge,
)
from taquba.objectstore import MemoryStore
from taquba.queue import (
    MAX_BATCH_SIZE,
    MAX_DEDUP_KEY_LENGTH,
    MAX_HEADERS_SIZE,
    MAX_KV_KEY_SIZE,
    MAX_KV_VALUE_SIZE,
    MAX_PAYLOAD_SIZE,
    MAX_PRIORITY,
    Effects,
)
from tests.queue.harness import World, counts, read, take

pytestmark = pytest.mark.anyio

UTC_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Stage:
    """A store with a pending, a claimed and a dead job and a key, and what is on it."""

    def __init__(self, world: World, queue: Queue, claim: Claim) -> None:
        self.world = world
        self.queue = queue
        self.claim = claim

    async def snapshot(self) -> Any:
        rows = await self.queue.read("SELECT * FROM jobs ORDER BY seq")
        kv = await self.queue.read("SELECT * FROM kv ORDER BY key")
        stats = [await self.queue.stats(name) for name in ("q", "other")]
        return rows, kv, stats, self.claim.is_live, list(self.world.wire.created)


@pytest.fixture
async def stage(world: World) -> Stage:
    queue = await world.open(config=QueueConfig(backoff_base=0))
    await queue.enqueue("q", b"dead", job_id="dead")
    await queue.dead_letter(await take(queue), "no")
    await queue.enqueue("q", b"claimed", job_id="claimed")
    claim = await take(queue, lease=3600)
    await queue.enqueue("q", b"pending", job_id="pending")
    await queue.kv.put("key", b"value")
    return Stage(world, queue, claim)


async def forgotten() -> bytes:
    return b"never awaited"


class NotHeaders:
    pass


PAYLOADS: list[tuple[Any, type[TaqubaError], str]] = [
    ("text", InvalidType, "payload must be bytes, not str"),
    (None, InvalidType, "payload must be bytes, not NoneType"),
    (7, InvalidType, "payload must be bytes, not int"),
    ([b"x"], InvalidType, "payload must be bytes, not list"),
    ({"a": 1}, InvalidType, "payload must be bytes, not dict"),
    (bytes(MAX_PAYLOAD_SIZE + 1), ValueTooLarge, "16,777,217"),
]
QUEUES: list[tuple[Any, type[TaqubaError], str]] = [
    ("", InvalidQueueName, "0 bytes"),
    ("x" * 256, InvalidQueueName, "256 bytes"),
    ("é" * 128, InvalidQueueName, "256 bytes"),
    ("\ud800", InvalidArgument, "UTF-8"),
    (b"q", InvalidType, "queue name must be a str, not bytes"),
    (None, InvalidType, "queue name"),
    (7, InvalidType, "queue name"),
]
JOB_IDS: list[tuple[Any, type[TaqubaError], str]] = [
    ("", InvalidJobId, "1 to 128"),
    ("x" * 129, InvalidJobId, "129"),
    ("x" * 100_000, InvalidJobId, "100000"),
    ("a b", InvalidJobId, "'a b'"),
    ("a\n", InvalidJobId, "A-Z"),
    ("é", InvalidJobId, "A-Z"),
    ("\ud800", InvalidJobId, "A-Z"),
    (b"x", InvalidType, "job id must be a str, not bytes"),
    (7, InvalidType, "job id must be a str, not int"),
]
OPTIONS: list[tuple[str, Any, type[TaqubaError], str]] = [
    ("headers", [("a", "b")], InvalidType, "headers must be a mapping"),
    ("headers", "a=b", InvalidType, "headers must be a mapping"),
    ("headers", "", InvalidType, "headers must be a mapping"),
    ("headers", 0, InvalidType, "headers must be a mapping"),
    ("headers", NotHeaders(), InvalidType, "headers must be a mapping"),
    ("headers", {"a": 1}, InvalidType, "'a' to 1"),
    ("headers", {1: "a"}, InvalidType, "1 to 'a'"),
    ("headers", {"a": b"b"}, InvalidType, "'a' to b'b'"),
    ("headers", {"a": None}, InvalidType, "'a' to None"),
    ("headers", {"a": "\ud800"}, InvalidArgument, "'a'"),
    ("headers", {"\ud800": "a"}, InvalidArgument, "header name"),
    ("headers", {"a": "x" * MAX_HEADERS_SIZE}, ValueTooLarge, "65,537"),
    ("priority", -1, InvalidArgument, "priority is -1"),
    ("priority", MAX_PRIORITY + 1, InvalidArgument, "priority is 4294967296"),
    ("priority", True, InvalidType, "priority must be a whole number"),
    ("priority", 1.0, InvalidType, "priority must be a whole number"),
    ("priority", "high", InvalidType, "priority must be a whole number"),
    ("run_at", datetime(2030, 1, 1), InvalidArgument, "without a time zone"),  # noqa: DTZ001
    ("run_at", 1_800_000_000, InvalidType, "run_at must be a datetime"),
    ("run_at", "2030-01-01", InvalidType, "run_at must be a datetime"),
    ("run_at", date(2030, 1, 1), InvalidType, "run_at must be a datetime"),
    ("run_at", timedelta(1), InvalidType, "run_at must be a datetime"),
    ("run_at", datetime.max.replace(tzinfo=UTC), InvalidArgument, "9999"),
    (
        "run_at",
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=14))),
        InvalidArgument,
        "9999",
    ),
    ("delay", -1, InvalidArgument, "delay"),
    ("delay", -0.001, InvalidArgument, "delay"),
    ("delay", timedelta(microseconds=-1), InvalidArgument, "delay"),
    ("delay", float("nan"), InvalidArgument, "delay"),
    ("delay", float("inf"), InvalidArgument, "9999"),
    ("delay", 1e300, InvalidArgument, "9999"),
    ("delay", 10**400, InvalidArgument, "9999"),
    ("delay", timedelta.max, InvalidArgument, "9999"),
    ("delay", True, InvalidType, "delay"),
    ("delay", "1s", InvalidType, "delay"),
    ("delay", UTC_NOW, InvalidType, "delay"),
    ("max_attempts", 0, InvalidArgument, "max_attempts is 0"),
    ("max_attempts", -1, InvalidArgument, "max_attempts is -1"),
    ("max_attempts", 2**31, InvalidArgument, "max_attempts is 2147483648"),
    ("max_attempts", 2.5, InvalidType, "max_attempts must be a whole number"),
    ("max_attempts", False, InvalidType, "max_attempts must be a whole number"),
    ("max_attempts", "3", InvalidType, "max_attempts must be a whole number"),
]
DEDUP_KEYS: list[tuple[Any, type[TaqubaError], str]] = [
    (b"k", InvalidType, "dedup_key must be a str"),
    (7, InvalidType, "dedup_key must be a str"),
    ("x" * (MAX_DEDUP_KEY_LENGTH + 1), ValueTooLarge, "1025"),
    ("é" * 513, ValueTooLarge, "1026"),
    ("\ud800", InvalidArgument, "dedup_key"),
]
KEYS: list[tuple[Any, type[TaqubaError], str]] = [
    (None, InvalidType, "key must be str or bytes"),
    (7, InvalidType, "key must be str or bytes"),
    (bytearray(b"key"), InvalidType, "key must be str or bytes"),
    ("x" * (MAX_KV_KEY_SIZE + 1), ValueTooLarge, "4,097"),
    ("\ud800", InvalidArgument, "key"),
]
VALUES: list[tuple[Any, type[TaqubaError], str]] = [
    ("text", InvalidType, "value must be bytes, not str"),
    (None, InvalidType, "value must be bytes"),
    (7, InvalidType, "value must be bytes"),
    (bytes(MAX_KV_VALUE_SIZE + 1), ValueTooLarge, "262,145"),
]
DURATIONS: list[tuple[Any, type[TaqubaError], str]] = [
    (-1, InvalidArgument, "negative"),
    (timedelta(seconds=-1), InvalidArgument, "negative"),
    (float("nan"), InvalidArgument, "nan"),
    (True, InvalidType, "seconds"),
    ("1s", InvalidType, "seconds"),
]
COUNTS: list[tuple[Any, type[TaqubaError], str]] = [
    (-1, InvalidArgument, "number of jobs is -1"),
    (MAX_BATCH_SIZE + 1, InvalidArgument, "number of jobs is 10001"),
    (True, InvalidType, "number of jobs"),
    (1.0, InvalidType, "number of jobs"),
    (None, InvalidType, "number of jobs"),
]
ERRORS: list[tuple[Any, type[TaqubaError], str]] = [
    (None, InvalidType, "error must be an exception or a str"),
    (b"text", InvalidType, "error must be an exception or a str"),
    (ValueError, InvalidType, "error must be an exception or a str"),
]
CLAIMS: list[tuple[Any, type[TaqubaError], str]] = [
    (None, InvalidType, "expected a Claim"),
    ("claimed", InvalidType, "expected a Claim"),
    ([], InvalidType, "expected a Claim"),
]
EFFECTS: list[tuple[Any, type[TaqubaError], str]] = [
    ({"key": b"value"}, InvalidType, "effects must be an Effects, not dict"),
    ([], InvalidType, "effects must be an Effects, not list"),
    (0, InvalidType, "effects must be an Effects, not int"),
    (Effects, InvalidType, "effects must be an Effects, not type"),
]

Call = Callable[[Stage], Awaitable[Any]]
Case = tuple[str, Call, type[TaqubaError], str]


def settlements(*args: Any, **options: Any) -> Iterator[tuple[str, Call]]:
    yield "nack", lambda s: s.queue.nack(s.claim, *args, **options)
    yield "dead_letter", lambda s: s.queue.dead_letter(s.claim, *args, **options)


def cases() -> Iterator[Case]:
    for x, error, text in PAYLOADS:
        yield "enqueue", lambda s, x=x: s.queue.enqueue("q", x), error, text
        yield "enqueue_many", lambda s, x=x: s.queue.enqueue_many("q", [b"1", x]), error, text
    for x, error, text in QUEUES:
        yield "enqueue", lambda s, x=x: s.queue.enqueue(x, b""), error, text
        yield "enqueue_many", lambda s, x=x: s.queue.enqueue_many(x, [b""]), error, text
        yield "claim", lambda s, x=x: s.queue.claim(x), error, text
        yield "claim_many", lambda s, x=x: s.queue.claim_many(x, 1), error, text
        yield "stats", lambda s, x=x: s.queue.stats(x), error, text
    for x, error, text in JOB_IDS:
        yield "enqueue", lambda s, x=x: s.queue.enqueue("q", b"", job_id=x), error, text
        yield "cancel", lambda s, x=x: s.queue.cancel(x), error, text
        yield "requeue_dead", lambda s, x=x: s.queue.requeue_dead(x), error, text
        yield "get_job", lambda s, x=x: s.queue.get_job(x), error, text
    for x in (None,):
        for call in ("cancel", "requeue_dead", "get_job"):
            yield call, lambda s, x=x, call=call: getattr(s.queue, call)(x), InvalidType, "job id"
    for name, x, error, text in OPTIONS:
        options = {name: x}
        yield "enqueue", lambda s, o=options: s.queue.enqueue("q", b"", **o), error, text
        yield (
            "enqueue_many",
            lambda s, o=options: s.queue.enqueue_many("q", [b""], **o),
            error,
            text,
        )
    for x, error, text in DEDUP_KEYS:
        yield "enqueue", lambda s, x=x: s.queue.enqueue("q", b"", dedup_key=x), error, text
    both = {"run_at": UTC_NOW, "delay": 1}
    yield "enqueue", lambda s: s.queue.enqueue("q", b"", **both), InvalidArgument, "not both"
    for x in (b"bytes", "text", bytearray(b"bytes"), None, 7, NotHeaders()):
        yield "enqueue_many", lambda s, x=x: s.queue.enqueue_many("q", x), InvalidType, "payloads"
    too_many = [b""] * (MAX_BATCH_SIZE + 1)
    yield (
        "enqueue_many",
        lambda s: s.queue.enqueue_many("q", too_many),
        InvalidArgument,
        "10,000 jobs",
    )
    for x, error, text in COUNTS:
        yield "claim_many", lambda s, x=x: s.queue.claim_many("q", x), error, text
    for x, error, text in DURATIONS:
        yield "claim", lambda s, x=x: s.queue.claim("q", x), error, text
        yield "claim_many", lambda s, x=x: s.queue.claim_many("q", 1, x), error, text
        yield "nack", lambda s, x=x: s.queue.nack(s.claim, "", retry_after=x), error, text
        yield "renew", lambda s, x=x: call_now(lambda: s.claim.renew(x)), error, text
        yield "ensure", lambda s, x=x: call_now(lambda: s.claim.ensure_at_least(x)), error, text
    for x in (float("inf"), 1e300, timedelta.max):
        yield (
            "nack",
            lambda s, x=x: s.queue.nack(s.claim, "", retry_after=x),
            InvalidArgument,
            "9999",
        )
    for x, error, text in CLAIMS:
        yield "ack", lambda s, x=x: s.queue.ack(x), error, text
        yield "nack", lambda s, x=x: s.queue.nack(x, ""), error, text
        yield "dead_letter", lambda s, x=x: s.queue.dead_letter(x, ""), error, text
    for x, error, text in ERRORS:
        for name, call_ in settlements(x):
            yield name, call_, error, text
    for x, error, text in EFFECTS:
        yield "enqueue", lambda s, x=x: s.queue.enqueue("q", b"", effects=x), error, text
        yield "ack", lambda s, x=x: s.queue.ack(s.claim, x), error, text
        yield "cancel", lambda s, x=x: s.queue.cancel("pending", x), error, text
        for name, call_ in settlements("", x):
            yield name, call_, error, text
    for x, error, text in KEYS:
        yield "kv.get", lambda s, x=x: s.queue.kv.get(x), error, text
        yield "kv.put", lambda s, x=x: s.queue.kv.put(x, b""), error, text
        yield "kv.delete", lambda s, x=x: s.queue.kv.delete(x), error, text
    for x, error, text in VALUES:
        yield "kv.put", lambda s, x=x: s.queue.kv.put("key", x), error, text
    for x, error, text in QUEUES:
        yield "engine", lambda s, x=x: call_now(lambda: s.queue.engine(x, work)), error, text
        yield (
            "set_dead_letter_hook",
            lambda s, x=x: call_now(lambda: s.queue.set_dead_letter_hook(x, None)),
            error,
            text,
        )
    for x, error in (
        (0, InvalidArgument),
        (-1, InvalidArgument),
        (True, InvalidType),
        (1.5, InvalidType),
    ):
        yield (
            "worker",
            lambda s, x=x: call_now(lambda: s.queue.worker("q", work, concurrency=x)),
            error,
            "concurrency",
        )
    for x in (None, b"handler", 7):
        yield (
            "worker",
            lambda s, x=x: call_now(lambda: s.queue.worker("q", x)),
            InvalidType,
            "handler",
        )


async def work(claim: Claim) -> Any: ...


async def call_now(call: Callable[[], Any]) -> Any:
    return call()


ALL = list(cases())


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [case[1:] for case in ALL],
    ids=[f"{case[0]}-{n}" for n, case in enumerate(ALL)],
)
async def test_a_bad_argument_is_refused_and_nothing_is_written(
    stage: Stage, call: Call, error: type[TaqubaError], text: str
) -> None:
    before = await stage.snapshot()
    with pytest.raises(error) as caught:
        await call(stage)
    assert text in str(caught.value)
    assert len(str(caught.value)) < 500
    assert await stage.snapshot() == before
    await stage.queue.ack(stage.claim)


STAGED: list[tuple[Callable[[Effects], Any], type[TaqubaError]]] = [
    *(
        (lambda e, x=x: e.enqueue("q", x), error)  # type: ignore[misc]
        for x, error, _ in PAYLOADS
    ),
    *((lambda e, x=x: e.enqueue(x, b""), error) for x, error, _ in QUEUES),  # type: ignore[misc]
    *(
        (lambda e, x=x: e.enqueue("q", b"", job_id=x), error)  # type: ignore[misc]
        for x, error, _ in JOB_IDS
    ),
    *(
        (lambda e, o={name: x}: e.enqueue("q", b"", **o), error)  # type: ignore[misc]
        for name, x, error, _ in OPTIONS
        # A time past the end of the calendar shows when it is known what it counts from.
    ),
    *(
        (lambda e, x=x: e.enqueue("q", b"", dedup_key=x), error)  # type: ignore[misc]
        for x, error, _ in DEDUP_KEYS
    ),
    *((lambda e, x=x: e.put(x, b""), error) for x, error, _ in KEYS),  # type: ignore[misc]
    *((lambda e, x=x: e.delete(x), error) for x, error, _ in KEYS),  # type: ignore[misc]
    *((lambda e, x=x: e.put("key", x), error) for x, error, _ in VALUES),  # type: ignore[misc]
]


@pytest.mark.parametrize("number", range(len(STAGED)))
def test_a_bad_effect_is_refused_when_it_is_staged(number: int) -> None:
    stage, error = STAGED[number]
    effects = Effects()
    with pytest.raises(error):
        stage(effects)
    assert not effects


FORGOTTEN: list[Callable[[Queue, Claim, Coroutine[Any, Any, bytes]], Awaitable[Any]]] = [
    lambda queue, claim, x: queue.enqueue("q", x),  # type: ignore[arg-type]
    lambda queue, claim, x: queue.enqueue_many("q", [x]),  # type: ignore[list-item]
    lambda queue, claim, x: queue.enqueue_many("q", x),  # type: ignore[arg-type]
    lambda queue, claim, x: queue.ack(x),  # type: ignore[arg-type]
    lambda queue, claim, x: queue.nack(x, ""),  # type: ignore[arg-type]
    lambda queue, claim, x: queue.ack(claim, x),  # type: ignore[arg-type]
    lambda queue, claim, x: queue.kv.put("key", x),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("number", range(len(FORGOTTEN)))
async def test_a_forgotten_await_is_named_and_leaves_no_warning(stage: Stage, number: int) -> None:
    before = await stage.snapshot()
    with pytest.raises(InvalidType, match="'await' missing"):
        await FORGOTTEN[number](stage.queue, stage.claim, forgotten())
    assert await stage.snapshot() == before


def test_a_forgotten_await_in_an_effect_is_named() -> None:
    with pytest.raises(InvalidType, match="'await' missing"):
        Effects().put("key", forgotten())  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="'await' missing"):
        Effects().enqueue("q", forgotten())  # type: ignore[arg-type]


async def test_a_queue_that_was_not_awaited_says_so(world: World) -> None:
    opening = Queue.open(world.store)
    with pytest.raises(AttributeError, match="await Queue.open"):
        opening.enqueue("q", b"")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="await Queue.open"):
        opening.kv  # type: ignore[attr-defined]  # noqa: B018
    assert len(world.store) == 0


async def test_an_async_generator_of_payloads_is_refused(stage: Stage) -> None:
    async def payloads() -> AsyncIterator[bytes]:
        yield b""

    before = await stage.snapshot()
    with pytest.raises(InvalidType, match="payloads"):
        await stage.queue.enqueue_many("q", payloads())  # type: ignore[arg-type]
    assert await stage.snapshot() == before


async def test_an_error_of_the_caller_s_generator_passes_through(stage: Stage) -> None:
    def payloads() -> Iterator[bytes]:
        yield b""
        raise RuntimeError("mine")

    before = await stage.snapshot()
    with pytest.raises(RuntimeError, match="mine"):
        await stage.queue.enqueue_many("q", payloads())
    assert await stage.snapshot() == before


async def test_the_largest_of_everything_is_accepted(world: World, queue: Queue) -> None:
    headers = {"a": "x" * (MAX_HEADERS_SIZE - 1)}
    enqueued = await queue.enqueue(
        "é" * 127 + "x",
        bytes(MAX_PAYLOAD_SIZE),
        headers=headers,
        priority=MAX_PRIORITY,
        dedup_key="x" * MAX_DEDUP_KEY_LENGTH,
        max_attempts=2**31 - 1,
        job_id="x" * 128,
    )
    await queue.kv.put("x" * MAX_KV_KEY_SIZE, bytes(MAX_KV_VALUE_SIZE))
    queue = await world.crash()
    job = await read(queue, enqueued.job_id)
    assert job.headers == headers
    assert job.payload == bytes(MAX_PAYLOAD_SIZE)
    assert (job.priority, job.max_attempts) == (MAX_PRIORITY, 2**31 - 1)
    assert job.dedup_key == "x" * MAX_DEDUP_KEY_LENGTH
    assert await queue.kv.get("x" * MAX_KV_KEY_SIZE) == bytes(MAX_KV_VALUE_SIZE)


async def test_the_largest_batch_is_accepted(queue: Queue) -> None:
    await queue.enqueue_many("q", [b""] * MAX_BATCH_SIZE)
    assert len(await queue.claim_many("q", MAX_BATCH_SIZE)) == MAX_BATCH_SIZE
    assert await queue.stats("q") == counts(claimed=MAX_BATCH_SIZE)


# -- opening --------------------------------------------------------------------------------

OPENINGS: list[tuple[dict[str, Any], type[TaqubaError], str]] = [
    ({"config": {}}, InvalidType, "config must be a QueueConfig"),
    ({"config": None}, InvalidType, "config must be a QueueConfig"),
    ({"config": QueueConfig}, InvalidType, "config must be a QueueConfig"),
    ({"queues": {"q": {}}}, InvalidType, "queues['q'] must be a QueueConfig"),
    ({"queues": {"": QueueConfig()}}, InvalidQueueName, "0 bytes"),
    ({"queues": {7: QueueConfig()}}, InvalidType, "queue name"),
    ({"queues": ["q"]}, InvalidType, "queues must be a mapping"),
    ({"queues": QueueConfig()}, InvalidType, "queues must be a mapping"),
    ({"commit_interval": -1}, InvalidArgument, "commit_interval"),
    ({"commit_interval": "fast"}, InvalidType, "commit_interval"),
    ({"commit_interval": float("nan")}, InvalidArgument, "commit_interval"),
    ({"close_timeout": -1}, InvalidArgument, "close_timeout"),
    ({"close_timeout": True}, InvalidType, "close_timeout"),
    ({"clock": 7}, InvalidType, "clock"),
    ({"clock": datetime}, InvalidType, "clock"),
    ({"storage_options": {"key": "x"}}, InvalidArgument, "storage_options"),
    ({"storage_options": [("key", "x")]}, InvalidType, "storage_options must be a mapping"),
]


@pytest.mark.parametrize(("options", "error", "text"), OPENINGS)
async def test_a_bad_option_of_open_is_refused(
    options: dict[str, Any], error: type[TaqubaError], text: str
) -> None:
    store = MemoryStore()
    with pytest.raises(error) as caught:
        await Queue.open(store, **options)
    assert text in str(caught.value)
    assert len(store) == 0


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("", InvalidUrl),
        ("nope://bucket", InvalidUrl),
        ("http://example.org/x", InvalidUrl),
        ("s3://", InvalidUrl),
        (None, InvalidType),
        (7, InvalidType),
        (b"/tmp/x", InvalidType),
        (MemoryStore, InvalidType),
        (object(), InvalidType),
    ],
)
async def test_a_bad_target_is_refused(target: Any, error: type[TaqubaError]) -> None:
    with pytest.raises(error):
        await Queue.open(target)


async def test_a_store_that_was_not_awaited_is_named() -> None:
    from taquba import open_store

    with pytest.raises(InvalidType, match="'await' missing"):
        await Queue.open(open_store("memory://"))  # type: ignore[arg-type]


async def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(TaqubaError, match="file"):
        await Queue.open(path)
    assert path.read_text() == "mine"


CONFIGS: list[tuple[str, Any, type[TaqubaError]]] = [
    ("max_attempts", 0, InvalidArgument),
    ("max_attempts", 2**31, InvalidArgument),
    ("max_attempts", True, InvalidType),
    ("max_attempts", None, InvalidType),
    ("default_priority", -1, InvalidArgument),
    ("default_priority", 2**32, InvalidArgument),
    ("default_priority", "high", InvalidType),
    *(
        (name, value, error)
        for name in ("lease", "backoff_base", "backoff_max", "keep_done", "keep_dead")
        for value, error, _ in DURATIONS
    ),
    ("lease", None, InvalidType),
    ("backoff_base", None, InvalidType),
    ("backoff_max", None, InvalidType),
]


@pytest.mark.parametrize(("name", "value", "error"), CONFIGS)
def test_a_bad_configuration_is_refused(name: str, value: Any, error: type[TaqubaError]) -> None:
    with pytest.raises(error, match=name):
        QueueConfig(**{name: value})
