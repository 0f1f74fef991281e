"""What the drivers on aiohttp share. Imported only with them, since aiohttp is an extra."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

__all__ = ["Body", "causes", "for_each", "is_untrusted_certificate"]

_CHUNK = 65_536


class Body(Payload):
    """The body of a request: some pieces of bytes, sent one after the other.

    aiohttp warns of a `bytes` over a megabyte, since it is written in one go. A file-like
    object would be without the warning, but at its end when aiohttp sends the request again
    after a lost connection. This can be sent any number of times, and copies nothing.
    """

    def __init__(self, *pieces: bytes) -> None:
        super().__init__(pieces)
        self._size = sum(map(len, pieces))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The body as text."""
        return b"".join(self._value).decode(encoding, errors)

    async def as_bytes(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """The body in one piece."""
        return b"".join(self._value)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send it in chunks, so that other tasks get their turns."""
        for piece in self._value:
            view = memoryview(piece)
            for start in range(0, len(view), _CHUNK):
                await writer.write(view[start : start + _CHUNK])

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        """Send it; its length is always the one that was announced."""
        await self.write(writer)


async def for_each(
    names: Sequence[str], request: Callable[[str], Awaitable[object]], *, at_once: int
) -> None:
    """Make a request for every name, some of them at once, until one fails.

    Raises:
        Exception: What the first failed request raised, when none is under way any more.
    """
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:
            await request(name)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(names))):
                group.create_task(work())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what caused it, what caused that, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def is_untrusted_certificate(error: BaseException) -> bool:
    """Whether the server's certificate is why there is no answer: waiting cures nothing."""
    return any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes(error))
