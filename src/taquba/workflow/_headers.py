"""The headers by which a step job says which run it belongs to."""

from __future__ import annotations

__all__ = ["HEADER_LIFE", "HEADER_RUN_ID", "RESERVED_HEADER_PREFIX"]

RESERVED_HEADER_PREFIX = "workflow."
HEADER_RUN_ID = "workflow.run_id"
HEADER_LIFE = "workflow.life"
"""Number of the run id's life; see `taquba.workflow._schema`."""
