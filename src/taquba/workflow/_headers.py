"""The headers by which a step job says which run it belongs to."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["HEADER_LIFE", "HEADER_RUN_ID", "RESERVED_HEADER_PREFIX", "life_of"]

RESERVED_HEADER_PREFIX = "workflow."
HEADER_RUN_ID = "workflow.run_id"
HEADER_LIFE = "workflow.life"
"""Number of the run id's life; see `taquba.workflow._schema`."""

_MOST_DIGITS = 18
"""Of a number that fits SQLite's integers for sure."""


def life_of(headers: Mapping[str, str]) -> int | None:
    """The number of the life that a step job belongs to; None if it is no step job."""
    text = headers.get(HEADER_LIFE, "")
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        return int(text)
    return None
