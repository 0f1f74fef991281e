"""Making the disk keep what was written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["sync_directory", "sync_file"]

if sys.platform == "darwin":
    import fcntl

    def sync_file(descriptor: int) -> None:
        """Return when the file's bytes are on the disk."""
        # fsync leaves them in the drive's cache on macOS.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)

else:

    def sync_file(descriptor: int) -> None:
        """Return when the file's bytes are on the disk."""
        os.fsync(descriptor)


def sync_directory(folder: Path) -> None:
    """Return when the names in the folder are on the disk."""
    if sys.platform == "win32":
        return  # Windows cannot open a folder; NTFS journals its names by itself
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)
