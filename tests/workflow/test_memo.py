"""Memo: what is kept, for how long, in which form, and when it is safe."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import gc
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import msgpack
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from taquba import ManualClock, PermanentError, TransientError
from taquba.errors import (
    ClaimLost,
    InvalidArgument,
    InvalidType,
    ReservedName,
    SerializationError,
    ValueTooLarge,
)
from taquba.objectstore import MemoryStore
from taquba.workflow import (
    MAX_INLINE_MEMO_SIZE,
    Cancel,
    Continue,
    ErrorKind,
    Fail,
    Memo,
    Outcome,
    RunState,
    Step,
    Succeed,
    TerminalStatus,
)

from .harness import Bed, Process, bed, settle

pytestmark = pytest.mark.anyio

Body = Callable[[Step], Awaitable[Any]]


async def in_step(body: Body, **options: Any) -> Any:
    """What `body` returns or raises, run as a step."""
    answers: list[Any] = []

    async def runner(step: Step) -> Outcome:
        try:
            answers.append(await body(step))
        except Exception as error:
            answers.append(error)
        return Succeed()

    async with bed(runner, **options) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.end("r")
    assert len(answers) == 1, "one attempt"
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


def counted(value: Any) -> Any:
    """A function that returns `value`, and counts its calls at `.calls`."""

    def fn() -> Any:
        fn.calls += 1  # type: ignore[attr-defined]
        return value

    fn.calls = 0  # type: ignore[attr-defined]
    return fn


# -- get and put -----------------------------------------------------------------------------


async def test_get_and_put() -> None:
    """MEM-01, MEM-02"""

    async def body(step: Step) -> None:
        assert await step.memo.get("k") is None
        await step.memo.put("k", b"one")
        assert await step.memo.get("k") == b"one"
        await step.memo.put("k", b"two")
        assert await step.memo.get("k") == b"two"
        await step.memo.put("k", b"")
        assert await step.memo.get("k") == b""
        await step.memo.put("other", bytearray(b"x"))
        assert await step.memo.get("other") == b"x"
        await step.memo.put("other", memoryview(b"y"))
        assert await step.memo.get("other") == b"y"

    await in_step(body)


async def test_scopes() -> None:
    """MEM-03, MEM-04, MEM-17"""
    seen: dict[tuple[str, int], list[bytes | None]] = {}

    async def runner(step: Step) -> Outcome:
        seen[step.run_id, step.number] = [await step.memo.get("k"), await step.run_memo.get("k")]
        me = f"{step.run_id}{step.number}".encode()
        await step.memo.put("k", me)
        if step.number == 0:
            await step.run_memo.put("k", b"run " + me)
        assert await step.memo.get("k") == me
        return Continue() if step.number < 2 else Succeed()

    async with bed(runner) as t:
        for name in "ab":
            await t.runtime.submit(b"", run_id=name)
        for name in "ab":
            await t.end(name)
    for name in "ab":
        assert [seen[name, number] for number in range(3)] == [
            [None, None],
            [None, b"run " + name.encode() + b"0"],
            [None, b"run " + name.encode() + b"0"],
        ]


KEYS = ["", "with/slash", "with spaces", "é ü 漢字 🙂", "x" * 10_000, "a\x00b", "\n", "K", "k", "é"]


async def test_any_text_is_a_key() -> None:
    """MEM-05"""

    async def body(step: Step) -> None:
        for number, key in enumerate(KEYS):
            await step.memo.put(key, b"%d" % number)
        for number, key in enumerate(KEYS):
            assert await step.memo.get(key) == b"%d" % number

    await in_step(body)


async def test_limits_of_keys_and_values() -> None:
    async def body(step: Step) -> None:
        await step.memo.put("x" * 65_536, b"")
        await step.memo.put("é" * 32_768, b"")
        for key in ("x" * 65_537, "é" * 32_769):
            for call in (step.memo.get(key), step.memo.put(key, b"")):
                with pytest.raises(InvalidArgument, match=r"65,53\d bytes"):
                    await call
        await step.memo.put("big", bytes(MAX_INLINE_MEMO_SIZE))
        with pytest.raises(ValueTooLarge, match="16,777,217"):
            await step.memo.put("big", bytes(MAX_INLINE_MEMO_SIZE + 1))
        assert await step.memo.get("big") == bytes(MAX_INLINE_MEMO_SIZE)

    await in_step(body, memo_inline_limit=None)


WRONG: dict[str, tuple[Callable[[Memo], Any], type[Exception], str]] = {
    "get int": (lambda m: m.get(5), InvalidType, "key"),  # type: ignore[arg-type]
    "get bytes": (lambda m: m.get(b"k"), InvalidType, "key"),  # type: ignore[arg-type]
    "get reserved": (lambda m: m.get("workflow.outcome"), ReservedName, "choose another"),
    "put reserved": (lambda m: m.put("workflow.outcome", b""), ReservedName, "choose another"),
    "memoized reserved": (lambda m: m.memoized("workflow.", int), ReservedName, "choose another"),
    "get surrogate": (lambda m: m.get("\ud800"), InvalidArgument, "UTF-8"),
    "put None": (lambda m: m.put("k", None), InvalidType, "bytes"),  # type: ignore[arg-type]
    "put str": (lambda m: m.put("k", "v"), InvalidType, "encode"),  # type: ignore[arg-type]
    "put key": (lambda m: m.put(None, b""), InvalidType, "key"),  # type: ignore[arg-type]
    "put coroutine": (lambda m: m.put("k", m.get("k")), InvalidType, "await"),  # type: ignore[arg-type]
    "memoized value": (lambda m: m.memoized("k", 5), InvalidType, "lambda"),  # type: ignore[call-overload]
    "memoized None": (lambda m: m.memoized("k", None), InvalidType, "callable"),  # type: ignore[call-overload]
    "memoized coroutine": (lambda m: m.memoized("k", m.get("k")), InvalidType, "lambda"),  # type: ignore[call-overload]
    "memoized key": (lambda m: m.memoized(7, lambda: 1), InvalidType, "key"),  # type: ignore[call-overload]
    "type 5": (lambda m: m.memoized("k", lambda: 1, 5), InvalidType, "type 5"),  # type: ignore[call-overload]
    "type object": (lambda m: m.memoized("k", lambda: 1, object()), InvalidType, "type <object"),  # type: ignore[call-overload]
    "type str": (lambda m: m.memoized("k", lambda: 1, "Unknown"), InvalidType, "type 'Unknown'"),  # type: ignore[call-overload]
    "type class": (lambda m: m.memoized("k", lambda: 1, Odd), InvalidType, "Odd"),
    "type list": (lambda m: m.memoized("k", lambda: 1, [int]), InvalidType, "type"),  # type: ignore[call-overload]
    "type dict": (lambda m: m.memoized("k", lambda: 1, {}), InvalidType, "type"),  # type: ignore[call-overload]
    "content": (lambda m: m.memoized_by_content(Odd(), int), SerializationError, "content"),
    "content set": (lambda m: m.memoized_by_content({1}, int), SerializationError, "content"),
    "content fn": (lambda m: m.memoized_by_content("c", 5), InvalidType, "callable"),  # type: ignore[call-overload]
}


def stored_keys(step: Step) -> list[tuple[Any, ...]]:
    return step._queue.peek("SELECT key FROM memos")


class Odd:
    """A class that pydantic knows nothing of."""


@pytest.mark.parametrize("name", WRONG)
async def test_wrong_arguments(name: str) -> None:
    """MEM-21: typed errors; nothing is stored, nothing was computed. In the run's memo, too."""
    call, error, message = WRONG[name]

    async def body(step: Step) -> None:
        for memo in (step.memo, step.run_memo):
            with pytest.raises(error, match=message):
                await call(memo)
            assert await memo.get("k") is None
        assert stored_keys(step) == []

    await in_step(body)
    gc.collect()


# -- memoized --------------------------------------------------------------------------------


async def test_memoized() -> None:
    """MEM-06"""

    async def body(step: Step) -> None:
        fn = counted({"a": [1, 2.5, None, True, b"x", "é"]})
        first = await step.memo.memoized("k", fn)
        second = await step.memo.memoized("k", fn)
        assert first == second == {"a": [1, 2.5, None, True, b"x", "é"]}
        assert fn.calls == 1
        assert await step.memo.get("k") == msgpack.packb({"a": [1, 2.5, None, True, b"x", "é"]})

    await in_step(body)


async def test_kinds_of_functions() -> None:
    """6: async or sync, and anything awaitable that comes out of a sync one."""

    async def compute() -> int:
        await asyncio.sleep(0)
        return 5

    class Callable5:
        async def __call__(self) -> int:
            return 5

    async def body(step: Step) -> None:
        functions: list[Any] = [
            compute,
            lambda: compute(),
            lambda: 5,
            lambda: asyncio.ensure_future(compute()),
            Callable5(),
        ]
        for number, fn in enumerate(functions):
            assert await step.memo.memoized(f"k{number}", fn) == 5

    await in_step(body)


async def test_none_and_false_are_values() -> None:
    """6: a stored None is not absence."""

    async def body(step: Step) -> None:
        for number, value in enumerate([None, False, 0, "", b"", [], {}]):
            fn = counted(value)
            for _ in range(3):
                got = await step.memo.memoized(f"k{number}", fn)
                assert got == value and type(got) is type(value)
            assert fn.calls == 1

    await in_step(body)


async def test_the_first_call_returns_what_later_ones_return() -> None:
    """A tuple comes back as a list, the first time too."""

    async def body(step: Step) -> None:
        for _ in range(2):
            value = await step.memo.memoized("k", lambda: (1, (2, 3)))
            assert value == [1, [2, 3]]
        assert await step.memo.memoized("i", lambda: {1: "a"}) == {1: "a"}
        shared = [1]
        got = await step.memo.memoized("s", lambda: shared)
        got.append(2)
        assert shared == [1], "a decoded value is the caller's own"

    await in_step(body)


async def test_an_error_of_the_function() -> None:
    """MEM-07"""

    async def body(step: Step) -> None:
        def fails() -> int:
            raise ZeroDivisionError("mine")

        async def fails_later() -> int:
            raise KeyError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            await step.memo.memoized("k", fails)
        with pytest.raises(KeyError, match="mine"):
            await step.memo.memoized("k", fails_later)
        assert await step.memo.get("k") is None
        assert await step.memo.memoized("k", lambda: 7) == 7

    await in_step(body)


class Colour(enum.Enum):
    RED = "red"


class Page(BaseModel):
    url: str
    words: dict[str, int] = {}
    seen: datetime | None = None


class Section(BaseModel):
    title: str
    pages: list[Page]


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Pair(NamedTuple):
    a: int
    b: str


class Movie(TypedDict):
    title: str
    year: int


NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
TYPED: list[tuple[Any, Any]] = [
    (Page(url="u", words={"a": 1}, seen=NOW), Page),
    (Section(title="t", pages=[Page(url="u")]), Section),
    ([Page(url="a"), Page(url="b")], list[Page]),
    ({"k": Page(url="a")}, dict[str, Page]),
    (Page(url="a"), Page | Point),
    (None, Page | None),
    (Point(1, 2.5), Point),
    ([Point(1)], list[Point]),
    (Pair(1, "x"), Pair),
    ({"title": "t", "year": 1}, Movie),
    (NOW, datetime),
    (date(2026, 1, 2), date),
    (timedelta(days=3, microseconds=5), timedelta),
    (UUID(int=7), UUID),
    (Decimal("1.10"), Decimal),
    (PurePosixPath("/a/b"), PurePosixPath),
    ((1, "a"), tuple[int, str]),
    ({1, 2, 3}, set[int]),
    (frozenset({"a"}), frozenset[str]),
    (Colour.RED, Colour),
    ("a", Literal["a", "b"]),
    (5, int),
    (2**80, int),
    (True, bool),
    (1.5, float),
    (math.inf, float),
    (-math.inf, float),
    ([0.1, math.inf], list[float]),
    ("é\x00🙂", str),
    (b"", bytes),
    (b"text", bytes),
    (bytes(range(256)), bytes),
    ([b"\xff", b"a"], list[bytes]),
    (None, type(None)),
    ([1, "a", None, 2.5], list[Any]),
    (3, Annotated[int, Field(gt=2)]),
]


@pytest.mark.parametrize(("value", "type_"), TYPED, ids=lambda x: f"{x!r:.50}")
async def test_typed_values(value: Any, type_: Any) -> None:
    """6: through pydantic, equal and of the same type, the first time and later."""

    async def body(step: Step) -> None:
        fn = counted(value)
        for _ in range(3):
            got = await step.memo.memoized("k", fn, type_)
            assert got == value
            assert type(got) is type(value)
        assert fn.calls == 1

    await in_step(body)


async def test_not_a_number() -> None:
    async def body(step: Step) -> None:
        assert math.isnan(await step.memo.memoized("k", lambda: math.nan, float))
        assert math.isnan(await step.memo.memoized("p", lambda: math.nan))

    await in_step(body)


class Blob(BaseModel):
    data: bytes


UNENCODABLE: list[tuple[Any, Any]] = [
    (object(), None),
    (lambda: 1, None),
    ({1, 2}, None),
    (NOW, None),
    (Page(url="u"), None),
    (Point(1), None),
    (2**64, None),
    (1j, None),
    ("\ud800", None),
    ({(1, 2): 3}, None),
    ("5", int),
    (None, int),
    (5, Page),
    ({"title": "t"}, Movie),
    ([1, "x"], list[int]),
    (Point(1), Page),
    (2, Annotated[int, Field(gt=2)]),
    (object(), Any),
    ("\ud800", str),
    (Blob(data=b"\xff"), Blob),
]


@pytest.mark.parametrize(
    ("value", "type_"), UNENCODABLE, ids=lambda x: f"{x!r:.40}".split(" at 0x")[0]
)
async def test_unencodable_values(value: Any, type_: Any) -> None:
    """MEM-09: the error says what to do, and nothing is stored."""

    async def body(step: Step) -> None:
        fn = counted(value)
        with pytest.raises(SerializationError, match=r"cannot be (encoded|stored)"):
            await step.memo.memoized("k", fn, type_)
        assert fn.calls == 1
        assert await step.memo.get("k") is None

    await in_step(body)


async def test_a_value_nested_too_deeply() -> None:
    """MEM-09"""

    async def body(step: Step) -> None:
        deep: list[Any] = []
        for _ in range(2000):
            deep = [deep]
        with pytest.raises(SerializationError):
            await step.memo.memoized("k", lambda: deep)

    await in_step(body)


async def test_a_value_that_is_too_large() -> None:
    async def body(step: Step) -> None:
        with pytest.raises(ValueTooLarge):
            await step.memo.memoized("k", lambda: bytes(16 * 1024 * 1024))
        assert await step.memo.get("k") is None

    await in_step(body, memo_inline_limit=None)


async def test_an_unencodable_value_fails_the_run_for_good() -> None:
    """MEM-09: or else the expensive call would be repeated."""
    fn = counted(object())

    async def runner(step: Step) -> Outcome:
        await step.memo.memoized("k", fn)
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        end = await t.end("r")
        assert end.termination.error_kind is ErrorKind.PERMANENT
        assert "type=" in end.termination.error
    assert fn.calls == 1


@pytest.mark.parametrize(
    ("stored", "type_"),
    [
        (b"", None),
        (b"\xc1", None),
        (b"\x92\x01", None),
        (b"\x01\x02", None),
        (b"\x81\x91\x01\x02", None),  # a map whose key is a list
        (b"\xd9\x01\xff", None),
        (b"\xff\xfe", Page),
        (b"not json", Page),
        (b"{}", Page),
        (b'{"url": 5}', Page),
        (b'"x"', int),
        (msgpack.packb(5), Page),
        (b"1", Annotated[int, Field(gt=2)]),
    ],
)
async def test_an_undecodable_value_is_computed_again(
    stored: bytes, type_: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """MEM-08, 0.5: with a warning, and overwritten."""
    value: Any = Page(url="u") if type_ is Page else 7

    async def body(step: Step) -> None:
        fn = counted(value)
        await step.memo.put("the key", stored)
        assert await step.memo.memoized("the key", fn, type_) == value
        assert await step.memo.memoized("the key", fn, type_) == value
        assert fn.calls == 1

    with caplog.at_level(logging.WARNING, "taquba.workflow"):
        await in_step(body)
    assert ["'the key'" in record.getMessage() for record in caplog.records] == [True]


async def test_memoized_by_content() -> None:
    """MEM-10, 0.4: with the known answer of the key."""

    async def body(step: Step) -> None:
        fn = counted("out")
        for _ in range(3):
            assert await step.memo.memoized_by_content("hello", fn) == "out"
        assert fn.calls == 1
        key = "content:2b57c5b79a3aee10237006d2fc64b7ecd13b761867f5992f43eda5777a0726d9"
        assert await step.memo.get(key) == msgpack.packb("out")
        other = counted("translated")
        assert await step.memo.memoized_by_content(("translate", "hello"), other) == "translated"
        assert await step.memo.memoized_by_content(["translate", "hello"], other) == "translated"
        assert other.calls == 1
        third = counted(Page(url="u"))
        for _ in range(2):
            got = await step.memo.memoized_by_content({"a": 1}, third, Page)
            assert got == Page(url="u")
        assert third.calls == 1
        digest = hashlib.sha256(msgpack.packb({"a": 1})).hexdigest()
        assert await step.memo.get(f"content:{digest}") == b'{"url":"u","words":{},"seen":null}'

    await in_step(body)


# -- several at once -------------------------------------------------------------------------


async def test_concurrent_calls_of_one_key_compute_once() -> None:
    """MEM-20: ours run the function once."""

    async def body(step: Step) -> None:
        calls = 0

        async def compute() -> int:
            nonlocal calls
            calls += 1
            await asyncio.sleep(0)
            return calls

        got = await asyncio.gather(*(step.memo.memoized("k", compute) for _ in range(20)))
        assert got == [1] * 20
        # Other keys, and the run's memo, do not wait for each other.
        gate = asyncio.Event()

        async def wait() -> int:
            await gate.wait()
            return 1

        async def open_gate() -> int:
            gate.set()
            return 2

        assert await asyncio.gather(
            step.memo.memoized("a", wait),
            step.memo.memoized("b", wait),
            step.run_memo.memoized("a", open_gate),
        ) == [1, 1, 2]

    await in_step(body)


async def test_when_the_one_that_computes_fails_another_computes() -> None:
    async def body(step: Step) -> None:
        calls = 0

        async def compute() -> int:
            nonlocal calls
            calls += 1
            mine = calls
            await asyncio.sleep(0)
            if mine == 1:
                raise ZeroDivisionError
            return mine

        got = await asyncio.gather(
            *(step.memo.memoized("k", compute) for _ in range(4)), return_exceptions=True
        )
        assert isinstance(got[0], ZeroDivisionError)
        assert got[1:] == [2, 2, 2]

    await in_step(body)


async def test_when_the_one_that_computes_is_cancelled_another_computes() -> None:
    async def body(step: Step) -> None:
        calls = 0
        go = asyncio.Event()

        async def compute() -> int:
            nonlocal calls
            calls += 1
            await go.wait()
            return calls

        tasks = [asyncio.ensure_future(step.memo.memoized("k", compute)) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[1].cancel()
        await asyncio.gather(tasks[0], tasks[1], return_exceptions=True)
        assert tasks[0].cancelled() and tasks[1].cancelled()
        go.set()
        assert await tasks[2] == 2
        assert await step.memo.memoized("k", compute) == 2

    await in_step(body)


async def test_many_memos_at_once_share_writes() -> None:
    """The concurrent calls of one step cost a write together, not one each."""

    async def runner(step: Step) -> Outcome:
        before = t.store.writes
        await asyncio.gather(*(step.memo.memoized(f"k{n}", counted(n)) for n in range(100)))
        assert t.store.writes - before <= 2
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r", max_attempts=1)
        assert (await t.end("r")).termination.status is TerminalStatus.SUCCEEDED


# -- durability and life ---------------------------------------------------------------------


async def test_a_value_is_durable_when_the_call_returns() -> None:
    """6: and not before."""
    steps: list[str] = []
    begin = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        await begin.wait()
        await step.memo.put("p", b"v")
        steps.append("put")
        await step.memo.memoized("m", lambda: 1)
        steps.append("memoized")
        await step.memo.memoized("m", lambda: 2)
        steps.append("hit")
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        t.store.hold()
        begin.set()
        await t.clock.advance(5)
        assert steps == []
        t.store.release()
        await t.clock.advance(5)
        assert steps == ["put", "memoized", "hit"]


async def test_a_memo_survives_retries_crashes_and_expiry() -> None:
    """MEM-16"""
    store, clock = MemoryStore(), ManualClock()
    fn = counted("dear")
    seen: list[tuple[int, Any]] = []
    stop = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        before = await step.memo.get("k")
        seen.append((step.attempt, before and msgpack.unpackb(before)))
        value = await step.memo.memoized("k", fn)
        assert value == "dear"
        match step.attempt:
            case 1:
                raise TransientError("busy")
            case 2:
                await asyncio.Event().wait()  # the lease expires
            case 3:
                stop.set()
                await asyncio.Event().wait()  # the process dies
            case _:
                pass
        return Succeed(value.encode())

    process = Process(store, runner, clock, renew=None)
    assert await process.opened()
    await process.runtime.submit(b"", run_id="r", max_attempts=5)
    await clock.advance(50)
    assert stop.is_set()
    await process.kill()
    async with bed(runner, store=store, clock=clock, renew=None) as t:
        assert (await t.end("r")).outcome.result == b"dear"
    assert seen == [(1, None), (2, "dear"), (3, "dear"), (4, "dear")]
    assert fn.calls == 1


@pytest.mark.parametrize(
    "ends",
    [Succeed(), Fail("f"), Cancel("c"), PermanentError("p"), TransientError("t"), "expired"],
    ids=lambda x: type(x).__name__,
)
async def test_memos_go_when_the_run_ends(ends: Any) -> None:
    """MEM-15, MEM-18, MEM-19: each life of a run id has its own; nothing is left behind."""
    seen: list[bytes | None] = []

    async def runner(step: Step) -> Outcome:
        seen.append(await step.memo.get("k"))
        seen.append(await step.run_memo.get("k"))
        await step.memo.put("k", b"step")
        await step.run_memo.put("k", b"run")
        if step.number == 0:
            return Continue()
        if ends == "expired":
            await asyncio.Event().wait()
        if isinstance(ends, Exception):
            raise ends
        return ends  # pyright: ignore[reportReturnType]

    async with bed(runner, renew=None) as t:
        for _ in range(2):
            await t.runtime.submit(b"", run_id="r", max_attempts=1)
            await t.runtime.submit(b"", run_id="r2", run_at=datetime(2027, 1, 1, tzinfo=UTC))
            await t.end("r")
            assert t.queue.peek("SELECT * FROM memos") == []
    assert seen == [None, None, None, b"run"] * 2


async def test_memos_of_other_runs_stay() -> None:
    """MEM-14"""
    hold = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        await step.memo.put("k", step.run_id.encode())
        if step.run_id == "run-suffix":
            await hold.wait()
            assert await step.memo.get("k") == b"run-suffix"
        return Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="run-suffix")
        await t.runtime.submit(b"", run_id="run")
        await t.end("run")
        hold.set()
        assert (await t.end("run-suffix")).termination.status is TerminalStatus.SUCCEEDED


async def test_a_delivery_that_lost_its_lease_writes_no_memo() -> None:
    """2.4, last invariant: ours refuses the late write, since the redelivery may be at work."""
    late: list[Any] = []

    async def runner(step: Step) -> Outcome:
        if step.attempt == 1:
            await step.memo.put("early", b"1")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                for call in (
                    step.memo.put("k", b"late"),
                    step.run_memo.put("k", b"late"),
                    step.memo.memoized("k", counted("late")),
                ):
                    try:
                        late.append(await call)
                    except ClaimLost as error:
                        late.append(error)
                late.append(await step.memo.get("early"))
                late.append(await step.memo.memoized("early2", counted("x")))
            return Succeed(b"late")
        await t.clock.sleep(1)
        assert await step.memo.get("k") is None
        return Succeed(b"in time")

    async with bed(runner, renew=None) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.clock.advance(31)
        assert [type(x) for x in late[:3]] == [ClaimLost] * 3
        assert "lease" in str(late[0]) and "ensure_at_least" in str(late[0])
        assert late[3] == b"1"
        assert (await t.end("r")).outcome.result == b"in time"


async def test_a_memo_is_used_after_its_step() -> None:
    """A task that was not awaited: refused, and told why."""
    kept: list[Step] = []

    async def runner(step: Step) -> Outcome:
        kept.append(step)
        return Continue(after=60) if step.number == 0 else Succeed()

    async with bed(runner) as t:
        await t.runtime.submit(b"", run_id="r")
        await t.settle()
        with pytest.raises(ClaimLost, match="has ended"):
            await kept[0].memo.put("k", b"v")
        await t.end("r")
        for step in kept:
            with pytest.raises(ClaimLost, match="has ended"):
                await step.run_memo.memoized("k", lambda: 1)
        assert t.queue.peek("SELECT * FROM memos") == []


async def test_a_value_computed_while_the_lease_expires_is_not_stored() -> None:
    """The computation outlives the lease: the caller learns it."""
    fn = counted(1)

    async def runner(step: Step) -> Outcome:
        async def slow() -> int:
            if step.attempt == 1:
                import anyio

                with anyio.CancelScope(shield=True):
                    try:
                        await t.clock.sleep(40)
                    except asyncio.CancelledError:
                        pass
            return fn()  # type: ignore[no-any-return]

        return Succeed(b"%d" % await step.memo.memoized("k", slow))

    async with bed(runner, renew=None) as t:
        await t.runtime.submit(b"", run_id="r")
        assert (await t.end("r")).outcome.result == b"1"
    assert fn.calls == 2


async def test_a_store_that_fails_holds_the_memo_back() -> None:
    """Nothing is lost: the call returns when the store takes the write."""
    store, clock = MemoryStore(), ManualClock()
    done = asyncio.Event()

    async def runner(step: Step) -> Outcome:
        await step.memo.put("k", b"v")
        done.set()
        await asyncio.Event().wait()
        return Succeed()

    process = Process(store, runner, clock)
    assert await process.opened()
    process.store.hold()
    submitting = asyncio.ensure_future(process.runtime.submit(b"", run_id="r"))
    await clock.advance(1)
    assert not submitting.done()
    process.store.release()
    await settle(clock)
    assert done.is_set()
    await process.kill()

    async def look(step: Step) -> Outcome:
        return Succeed(await step.memo.get("k"))

    async with bed(look, store=store, clock=clock) as t:
        assert (await t.end("r")).outcome.result == b"v"


def test_types_are_exported() -> None:
    assert RunState.PENDING and Bed
