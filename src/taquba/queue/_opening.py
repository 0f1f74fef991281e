"""What stands for a queue, or a follower, until it is open; and how its store is opened."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar, final

from taquba._checks import wrong_type
from taquba.errors import InvalidArgument, InvalidType
from taquba.objectstore import ObjectStore, open_store

if TYPE_CHECKING:
    import os

__all__ = ["Opening", "open_target"]


class _Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=_Closable)


@final
class Opening(Generic[T]):
    """What `Queue.open` returns: ``await`` it, or use it with ``async with``."""

    def __init__(
        self, opening: Callable[[], Coroutine[Any, Any, T]], *, name: str = "Queue"
    ) -> None:
        self._opening = opening
        self._name = name
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._opening().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._opening()
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._opened is not None
        await self._opened.close()

    def __enter__(self) -> NoReturn:
        raise InvalidType(
            f"write 'async with {self._name}.open(…)' instead of 'with {self._name}.open(…)'"
        )

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        own = self._name
        raise AttributeError(
            f"{own}.open(…) is not open yet, so it has no {name!r}: write 'async with "
            f"{own}.open(…) as {own.lower()}:' or '{own.lower()} = await {own}.open(…)'"
        )


async def open_target(
    target: str | os.PathLike[str] | ObjectStore,
    storage_options: Mapping[str, Any] | None,
    *,
    read_only: bool = False,
) -> tuple[ObjectStore, bool]:
    """The store that `target` is or names, and whether the caller has to close it."""
    if isinstance(target, str) or hasattr(target, "__fspath__"):
        options = dict(storage_options or {})
        return await open_store(target, read_only=read_only, **options), True  # type: ignore[arg-type]
    if storage_options:
        raise InvalidArgument("storage_options go with a URL, not with an ObjectStore")
    if not isinstance(target, ObjectStore) or isinstance(target, type):
        raise wrong_type("target must be a URL, a path or an ObjectStore", target)
    return target, False
