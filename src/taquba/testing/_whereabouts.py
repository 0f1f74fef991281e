"""Where tasks wait, and for whom."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any

__all__ = ["place_of", "waits_outside"]

_OUTSIDE = (
    "aiohttp.",
    "asyncio.base_events",
    "asyncio.base_subprocess",
    "asyncio.proactor_events",
    "asyncio.selector_events",
    "asyncio.sslproto",
    "asyncio.streams",
    "asyncio.subprocess",
    "asyncio.unix_events",
    "asyncio.windows_events",
    "httpcore.",
)
"""Modules whose coroutines wait for sockets and other processes."""
_OF_ANYIO = ("SocketStream.", "UNIXSocketStream.", "UDPSocket.", "ConnectedUDPSocket.", "Process.")
_QUIET = ("taquba.", "asyncio.", "anyio.", "contextlib", "concurrent.")
"""Modules that are no answer to the question where a step waits."""

_SUSPENDED: tuple[tuple[Any, str, str], ...] = (
    (CoroutineType, "cr_frame", "cr_await"),
    (AsyncGeneratorType, "ag_frame", "ag_await"),
    (GeneratorType, "gi_frame", "gi_yieldfrom"),
)
_KINDS: tuple[Any, ...] = tuple(kind for kind, *_ in _SUSPENDED)


def waits_outside(task: asyncio.Task[Any]) -> list[asyncio.Future[Any]]:
    """The futures that this task waits for and that nobody on the event loop will complete.

    They stand for threads, sockets, other processes and real time. What cannot be told is
    taken for something that is waited for on the event loop.
    """
    awaited: asyncio.Future[Any] | None = getattr(task, "_fut_waiter", None)
    if awaited is None or isinstance(awaited, asyncio.Task):
        return []
    candidates: list[asyncio.Future[Any]] = [awaited, *getattr(awaited, "_children", ())]
    outside = False
    for frame in _frames(task.get_coro()):
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        if module == "asyncio.tasks":
            if name == "_wait":
                candidates += frame.f_locals.get("fs", ())
            elif name == "wait_for" and asyncio.isfuture(waited := frame.f_locals.get("fut")):
                candidates.append(waited)
            outside = outside or name == "sleep"
        elif module == "anyio._backends._asyncio":
            threads = "AsyncIOBackend.run_sync_in_worker_thread"
            outside = outside or name == threads or name.startswith(_OF_ANYIO)
        elif module.startswith(_OUTSIDE):
            outside = True
    found = [future for future in candidates if not future.done() and _is_of_a_thread(future)]
    return found or ([awaited] if outside else [])


def _is_of_a_thread(future: asyncio.Future[Any]) -> bool:
    """Whether it mirrors a `concurrent.futures.Future`."""
    callbacks: Any = getattr(future, "_callbacks", None) or ()
    return any(
        getattr(callback, "__qualname__", "").startswith("_chain_future.")
        for callback, *_ in callbacks
    )


def place_of(task: asyncio.Task[Any] | None) -> str:
    """Where the user's code in this task waits, as words."""
    innermost: FrameType | None = None
    in_thread = False
    for frame in _frames(None if task is None else task.get_coro()):
        if not f"{frame.f_globals.get('__name__', '')}.".startswith(_QUIET):
            innermost = frame
        in_thread = in_thread or frame.f_code.co_qualname in (
            "AsyncIOBackend.run_sync_in_worker_thread",
            "InExecutor.call",
        )
    if innermost is not None:
        code = innermost.f_code
        file = os.path.basename(code.co_filename)
        return f"at {file}, line {innermost.f_lineno}, in {code.co_qualname}"
    return "in a thread" if in_thread else "at a place that cannot be told"


def _frames(awaitable: Any) -> Iterator[FrameType]:
    """The frames of a coroutine that is suspended, and of what it awaits, outermost first."""
    seen: set[int] = set()
    while awaitable is not None and id(awaitable) not in seen:
        seen.add(id(awaitable))
        for kind, frame, awaits in _SUSPENDED:
            if isinstance(awaitable, kind):
                if (found := getattr(awaitable, frame)) is not None:
                    yield found
                awaitable = getattr(awaitable, awaits)
                break
        else:  # what wraps one of these shows it to nobody but the garbage collector
            wrapped = gc.get_referents(awaitable)
            awaitable = next((x for x in wrapped if isinstance(x, _KINDS)), None)
