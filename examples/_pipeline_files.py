"""The files that the document pipeline reads and writes."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

LARGEST_FILE = 4 * 1024 * 1024


def read_file(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        OSError: It cannot be read, or should not be.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
        raise OSError(errno.EINVAL, "is not a regular file")
    if status.st_size > LARGEST_FILE:
        raise OSError(errno.EFBIG, f"is larger than {LARGEST_FILE:,} bytes")
    return path.read_bytes()


def report_file(reports: Path, run_id: str) -> Path:
    """Where the report of a run is written."""
    return reports / f"{run_id}.txt"


def write_whole(file: Path, text: str) -> None:
    """Write a file as a whole or not at all; writing the same again changes nothing."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def printable(name: object) -> str:
    """A file's name or path as valid text, whatever bytes it is made of."""
    return os.fsencode(str(name)).decode("utf-8", "backslashreplace")
