"""``taquba export``."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import TYPE_CHECKING

from taquba.cli._arguments import Usage, moment, opened
from taquba.cli._text import amount, json_text, size, time
from taquba.database import Exported, export_state

if TYPE_CHECKING:
    from taquba.clock import Clock

__all__ = ["export_command"]

_COMPANIONS = ("-wal", "-journal")


async def export_command(options: argparse.Namespace, clock: Clock) -> int:
    """Export, print, and give the exit status."""
    path: str = options.file
    at = None if options.at is None else moment(options.at, clock.now_ms())
    _check(path, options.force)
    store = await opened(options, clock)
    # What is there already stays until the new file is whole.
    target = f"{path}.new-{os.getpid()}" if options.force else path
    try:
        exported = await export_state(store, target, at=at)
    finally:
        await store.close()
    try:
        if not exported.position.seq:
            raise Usage(f"{options.url} holds no taquba store: neither a journal nor a checkpoint")
        if options.force:
            os.replace(target, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)
        raise
    written = os.path.getsize(path)
    if options.json:
        print(json_text(_as_json(path, written, exported)))
    else:
        print(
            f"{path}: {size(written)}, the state after entry {exported.position.seq - 1}, "
            f"committed {time(exported.committed_at_ms)} "
            f"({_sources(exported)})"
        )
    return 0


def _check(path: str, force: bool) -> None:
    """Refuse what cannot be written, before anything is read."""
    if not path or path.endswith(os.sep) or os.path.isdir(path):
        raise Usage(f"{path!r} is a folder: name the file to write")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise Usage(f"there is no folder {folder!r} to write to")
    if os.path.lexists(path) and not force:
        raise Usage(f"{path!r} exists: choose another file, or say --force to replace it")
    for companion in _COMPANIONS:
        # SQLite would take it for what is to be applied to the new file.
        if os.path.lexists(path + companion):
            raise Usage(
                f"{path + companion!r} exists, so somebody has the old {path!r} open, or left it "
                "unfinished: close it there, or choose another file"
            )


def _sources(exported: Exported) -> str:
    entries = amount(exported.entries, "entry", "entries")
    seq = exported.checkpoint_seq
    return f"{entries} from the start" if seq is None else f"checkpoint {seq} and {entries}"


def _as_json(path: str, written: int, exported: Exported) -> dict[str, object]:
    return {
        "file": os.path.abspath(path),
        "bytes": written,
        "seq": exported.position.seq,
        "epoch": exported.position.epoch,
        "digest": exported.position.digest.hex(),
        "committed_at_ms": exported.committed_at_ms,
        "checkpoint": exported.checkpoint_seq,
        "entries": exported.entries,
    }
