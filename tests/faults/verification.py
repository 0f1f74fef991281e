"""`taquba verify`, on a store that a test names by its URL."""

from __future__ import annotations

from typing import Any

from taquba.database import verify
from taquba.objectstore import open_store
from taquba.queue import QUEUE_CHECKS

__all__ = ["findings"]


async def findings(target: str, options: dict[str, Any]) -> list[str]:
    """Everything that is wrong with a store."""
    store = await open_store(target, read_only=True, **options)
    try:
        report = await verify(store, checks=QUEUE_CHECKS)
    finally:
        await store.close()
    assert report.settled, "somebody is still writing"
    return [str(finding) for finding in report.findings]
