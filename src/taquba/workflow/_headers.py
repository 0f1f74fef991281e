"""The headers by which a job says which run it belongs to."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "HEADER_GROUP",
    "HEADER_LIFE",
    "HEADER_RUN_ID",
    "HEADER_TERMINAL",
    "RESERVED_HEADER_PREFIX",
    "life_of",
    "own_headers",
]

RESERVED_HEADER_PREFIX = "workflow."
HEADER_RUN_ID = "workflow.run_id"
HEADER_LIFE = "workflow.life"
"""Number of the run id's life; see `taquba.workflow._schema`."""

HEADER_GROUP = "workflow.group"
"""Id of the group that the run is a member of."""
HEADER_TERMINAL = "workflow.terminal"
"""How the run has ended that a notification tells of."""

_MOST_DIGITS = 18
"""Of a number that fits SQLite's integers for sure."""


def life_of(headers: Mapping[str, str]) -> int | None:
    """The number of the life that a step job belongs to; None if it is no step job."""
    text = headers.get(HEADER_LIFE, "")
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        return int(text)
    return None


def own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The submitter's headers, of those of a step job."""
    return {
        name: text for name, text in headers.items() if not name.startswith(RESERVED_HEADER_PREFIX)
    }
