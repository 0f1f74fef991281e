"""What arguments and results come back as, for all that pydantic can describe."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, computed_field
from typing_extensions import TypedDict

from taquba.errors import InvalidType, SerializationError
from taquba.jobs import JobContext, JobRunner, job
from tests.jobs.harness import World, ended

pytestmark = pytest.mark.anyio

T = TypeVar("T")


class Colour(Enum):
    RED = "red"


class Cat(BaseModel):
    kind: Literal["cat"] = Field("cat", alias="Kind")
    lives: int = Field(9, validation_alias="nine-lives")


class Dog(BaseModel):
    kind: Literal["dog"] = Field("dog", alias="Kind")


class Box(BaseModel, Generic[T]):
    content: T


class Computes(BaseModel):
    model_config = ConfigDict(extra="forbid")
    side: int

    @computed_field
    @property
    def area(self) -> int:
        return self.side**2


class Row(TypedDict):
    data: bytes
    value: float


@dataclass(slots=True)
class Point:
    x: float
    data: bytes = b""


class Hidden(BaseModel):
    shown: int
    hidden: int = Field(0, exclude=True)


@dataclass
class Mixed:
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    rows: list[Row]


VALUES: list[tuple[Any, Any]] = [
    (float, 0.1),
    (float, math.inf),
    (bytes, bytes(range(256))),
    (int, 2**63),
    (int | str, "1"),
    (int | str, 1),
    (int | float, 1.5),
    (bool | int, True),
    (int | None, None),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)),
    (date, date(2026, 1, 2)),
    (timedelta, timedelta(days=1, microseconds=1)),
    (Decimal, Decimal("0.10")),
    (UUID, UUID(int=7)),
    (Colour, Colour.RED),
    (PurePosixPath, PurePosixPath("a/b")),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (dict[str, list[bytes]], {"a": [b"\xff", b""]}),
    (dict[int, str], {1: "a"}),
    (list[tuple[float, float]], [(1.0, 2.0)]),
    (Cat, Cat(Kind="cat", **{"nine-lives": 7})),
    (Annotated[Cat | Dog, Field(discriminator="kind")], Dog(Kind="dog")),
    (Box[Cat], Box[Cat](content=Cat(Kind="cat", **{"nine-lives": 1}))),
    (Box[list[int]], Box[list[int]](content=[1])),
    (Computes, Computes(side=3)),
    (Row, {"data": b"\xff", "value": -math.inf}),
    (Point, Point(1.5, b"\xfe")),
    (Mixed, Mixed(Dog(Kind="dog"), [{"data": b"\x80", "value": 0.5}])),
    (Annotated[int, Field(gt=0)], 1),
    (Any, {"a": [1, None, "x"]}),
    (str, "ünï\x00 \u2028 😀"),
    (str, ""),
]


@pytest.fixture
def world() -> World:
    return World()


def echo_of(kind: Any) -> Any:
    async def echo(ctx: JobContext, value: Any) -> Any:
        return value

    echo.__annotations__ = {"ctx": JobContext, "value": kind, "return": kind}
    return job("echo")(echo)


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=str)
async def test_values_come_back(world: World, kind: Any, value: Any) -> None:
    echo = echo_of(kind)
    async with world.runner(echo) as jobs:
        result = await ended(world, await jobs.submit(echo(value)))
        assert result == value
        assert type(result) is type(value)


async def test_nan_comes_back(world: World) -> None:
    for kind, value, get in (
        (float, math.nan, lambda x: x),
        (list[float], [1.0, math.nan], lambda x: x[1]),
        (Point, Point(math.nan), lambda x: x.x),
        (Row, {"data": b"", "value": math.nan}, lambda x: x["value"]),
    ):
        echo = echo_of(kind)
        check: Callable[[Any], float] = get
        async with world.runner(echo) as jobs:
            assert math.isnan(check(await ended(world, await jobs.submit(echo(value)))))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (SecretStr, SecretStr("s")),
        (dict[str, SecretStr], {"a": SecretStr("s")}),
        (Hidden, Hidden(shown=1, hidden=2)),
        (bytes | str, "abcd"),
        (Any, (1, 2)),
        pytest.param(Any, object(), id="object"),  # whose text differs from process to process
        (dict[str, Any], {"a": {1, 2}}),
        (str, "\ud800"),
    ],
    ids=str,
)
def test_what_would_not_come_back_is_refused(kind: Any, value: Any) -> None:
    with pytest.raises(SerializationError):
        echo_of(kind)(value)


def test_defaults_of_fields_that_are_hidden_are_no_harm() -> None:
    assert b"hidden" not in echo_of(Hidden)(Hidden(shown=1)).data


def test_constraints_of_parameters_hold() -> None:
    echo = echo_of(Annotated[int, Field(gt=0)])
    with pytest.raises(InvalidType, match="greater than 0"):
        echo(0)


async def test_parameters_with_odd_names_and_places(world: World) -> None:
    @job("odd")
    async def odd(
        ctx: JobContext, copy: int, /, schema: str, _private: int = 2, *, model_config: int = 3
    ) -> list[Any]:
        return [copy, schema, _private, model_config]

    async with world.runner(odd) as jobs:
        assert await ended(world, await jobs.submit(odd(1, "s"))) == [1, "s", 2, 3]
        call = odd(1, schema="s", _private=5, model_config=6)
        assert dict(call.arguments) == {"copy": 1, "schema": "s", "_private": 5, "model_config": 6}
        assert await ended(world, await jobs.submit(call)) == [1, "s", 5, 6]


async def test_a_parameter_with_an_alias_goes_by_its_name(world: World) -> None:
    @job("aliased")
    async def aliased(ctx: JobContext, number: Annotated[int, Field(gt=0, alias="n")]) -> int:
        return number

    assert aliased(1).data == b'{"number":1}'
    async with world.runner(aliased) as jobs:
        assert await ended(world, await jobs.submit(aliased(number=7))) == 7


async def test_defaults_are_fresh_each_time(world: World) -> None:
    @job("appends")
    async def appends(ctx: JobContext, words: list[str] = []) -> list[str]:  # noqa: B006
        words.append("x")
        return words

    async with world.runner(appends) as jobs:
        for _ in range(2):
            assert await ended(world, await jobs.submit(appends())) == ["x"]


async def test_a_parameter_that_is_new_has_its_default(world: World) -> None:
    @job("grows")
    async def before(ctx: JobContext, a: int) -> int:
        raise NotImplementedError

    @job("grows")
    async def after(ctx: JobContext, a: int, b: int = 10) -> int:
        return a + b

    async with world.runner() as jobs:
        job_id = (await jobs.submit(before(1))).job_id
    async with world.runner(after) as jobs:
        assert isinstance(jobs, JobRunner)
        assert await ended(world, jobs.handle(after, job_id)) == 11
