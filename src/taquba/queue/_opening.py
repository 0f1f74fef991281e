"""What stands for a queue until it is open."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, final

from taquba.errors import InvalidType

if TYPE_CHECKING:
    from taquba.queue._queue import Queue

__all__ = ["Opening"]


@final
class Opening:
    """What `Queue.open` returns: ``await`` it, or use it with ``async with``."""

    def __init__(self, opening: Callable[[], Coroutine[Any, Any, Queue]]) -> None:
        self._opening = opening
        self._queue: Queue | None = None

    def __await__(self) -> Generator[Any, None, Queue]:
        return self._opening().__await__()

    async def __aenter__(self) -> Queue:
        self._queue = await self._opening()
        return self._queue

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._queue is not None
        await self._queue.close()

    def __enter__(self) -> NoReturn:
        raise InvalidType("write 'async with Queue.open(…)' instead of 'with Queue.open(…)'")

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"Queue.open(…) is not open yet, so it has no {name!r}: write "
            "'async with Queue.open(…) as queue:' or 'queue = await Queue.open(…)'"
        )
