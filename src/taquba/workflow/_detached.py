"""Steps that belong to no runtime, for tests of what is given one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import apsw

from taquba._checks import blob, shown, whole
from taquba.errors import InvalidArgument, InvalidType, ReservedName
from taquba.queue import KeyValueReader
from taquba.queue._detached import detached_claim
from taquba.workflow._headers import RESERVED_HEADER_PREFIX
from taquba.workflow._queues import queue_of
from taquba.workflow._schema import WORKFLOW_SCHEMA
from taquba.workflow._signal import MAX_SIGNAL_SIZE
from taquba.workflow._step import DETACHED_LIFE, StepBase

__all__ = ["detached_step"]

AnyStep = TypeVar("AnyStep", bound=StepBase)

_MAX_NUMBER = 2**31


class _Stored:
    """A large value, in the place of an object."""

    def __init__(self, ref: str) -> None:
        self.ref = ref

    def use(self, tx: object) -> None:
        pass

    def finish(self) -> None:
        pass


class _NoKeys:
    """The source of a key-value store in which nothing is."""

    async def enter(self) -> None:
        pass

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return []

    async def leave(self) -> None:
        pass


class _Store:
    """What the memos of one detached step stand on: they are encoded and kept as usual.

    It has what `Memo` asks of a `Queue` and of its transactions. Nothing has to be waited for.
    """

    def __init__(self) -> None:
        self._connection: Any = None
        self._large: dict[str, bytes] = {}
        self._numbers = itertools.count(1)

    def execute(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        if self._connection is None:
            self._connection = apsw.Connection(":memory:")
            for statement in WORKFLOW_SCHEMA.statements:
                self._connection.execute(statement)
        return self._connection.execute(sql, parameters)

    @property
    def kv(self) -> _Store:
        return self

    def reader(self) -> KeyValueReader:
        return KeyValueReader(cast(Any, _NoKeys()))

    def peek(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return list(self.execute(sql, parameters))

    def transaction(self) -> _Store:
        return self

    def __enter__(self) -> _Store:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def ready(self) -> None:
        pass

    async def barrier(self) -> None:
        pass

    async def durable(self) -> None:
        pass

    async def store_value(self, value: bytes) -> _Stored:
        ref = f"detached/{next(self._numbers)}"
        self._large[ref] = value
        return _Stored(ref)

    async def fetch_value(self, ref: str) -> bytes:
        return self._large[ref]

    def forget_value(self, ref: str) -> None:
        self._large.pop(ref, None)


def detached_step(
    kind: type[AnyStep],
    payload: bytes,
    *,
    number: int,
    attempt: int,
    max_attempts: int,
    signal: bytes | None,
    headers: Mapping[str, str] | None,
    run_id: str,
    workflow: str | None,
    revision: str | None,
) -> AnyStep:
    """A step that no runtime knows of; everything is checked as a runtime would check it."""
    from taquba.workflow._submitting import check_run_id
    from taquba.workflow._workflows import check_workflow

    queue = "detached"
    if workflow is not None:
        queue = queue_of(queue, *check_workflow(workflow, revision))
    elif revision is not None:
        raise InvalidArgument("a revision belongs to a workflow: pass workflow=… too")
    given: object = headers
    if given is not None and not isinstance(given, Mapping):
        raise InvalidType(f"headers must be a mapping of str to str, not {shown(given)}")
    for header in headers or ():
        if isinstance(header, str) and header.startswith(RESERVED_HEADER_PREFIX):
            raise ReservedName(
                f"header {header!r}: names that begin with {RESERVED_HEADER_PREFIX!r} are taquba's "
                "own, and no step sees them"
            )
    claim = detached_claim(
        payload,
        queue=queue,
        job_id="detached",
        headers=headers,
        attempt=attempt,
        max_attempts=max_attempts,
    )
    store = cast(Any, _Store())
    step = kind(
        store,
        cast(Any, None),
        claim,
        DETACHED_LIFE,
        check_run_id(run_id),
        whole(number, "number", 0, _MAX_NUMBER),
    )
    if signal is not None:
        step.signal = blob(signal, name="signal", limit=MAX_SIGNAL_SIZE)
    return step
