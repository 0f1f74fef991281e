"""What is used with ``async with``, and says so when it is used with ``with``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taquba.errors import InvalidType

__all__ = ["AsyncBlock"]


class AsyncBlock:
    """Refuses a plain ``with``. Type checkers do not see how, and refuse it by themselves."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __enter__(self):
            raise InvalidType(f"write 'async with' for a {type(self).__name__}, instead of 'with'")

        def __exit__(self, *_): ...  # without it, Python does not come to call __enter__
