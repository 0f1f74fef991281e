"""The example of a worker: it sends each message once, however often it is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "email_worker.py"


def run(folder: Path, *addresses: str) -> str:
    command = [sys.executable, str(EXAMPLE), "--store", "state", "--outbox", "outbox", *addresses]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    return ended.stdout


def test_each_message_is_sent_once(tmp_path: Path) -> None:
    first = run(tmp_path, "ann@example.org", "nonsense")
    assert "sent to ann@example.org, at attempt 2" in first
    assert "1 sent, 1 given up, 0 left" in first
    again = run(tmp_path, "ann@example.org", "ben@example.org")
    assert "ann@example.org has been sent one already" in again
    assert "2 sent, 1 given up, 0 left" in again
    assert len(list((tmp_path / "outbox").iterdir())) == 2
