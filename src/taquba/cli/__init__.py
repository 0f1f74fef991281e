"""The command line: ``taquba verify``, ``taquba export``, ``taquba info``."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and give its exit status.

    Args:
        argv: The arguments; those of the process if None.
    """
    from taquba.cli._main import run

    return run(argv)
