"""The document pipeline over a memo that acknowledges what it does not store.

A test runs it to see that the judgement over kills would notice.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from document_pipeline import main
from taquba.workflow import Memo


async def forget(memo: Memo, key: str, data: bytes) -> None:
    """Acknowledge, and do nothing."""


Memo.put = forget  # type: ignore[method-assign]
sys.exit(main())
