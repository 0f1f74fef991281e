"""What a process of the fault matrix is told to do, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["Kill", "Plan", "When"]

When = Literal["before", "amid", "after"]
"""A request is not sent, sent and not answered (of a deletion: half of it), or answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """The request at which the process ends itself, with SIGKILL."""

    number: int
    """Of the requests that are counted, from 1."""
    when: When
    requests: tuple[tuple[str, str], ...] = (("create", ""), ("put", ""), ("delete", ""))
    """What is counted: operations and prefixes of keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One process: what it opens, and what it does there."""

    name: str
    """Begins each of its lines in the log, and the ids of its jobs."""
    log: str
    target: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    task: Literal["work", "checkpoints", "migrate", "contend"] = "work"
    producers: int = 4
    consumers: int = 4
    jobs: int = 10**9
    """For each producer."""
    ahead: int = 40
    """Jobs enqueued and not yet settled, for each producer."""
    payload: int = 100
    lease: float = 30.0
    hold: float = 0.0
    """Seconds between a claim and its settlement."""
    delay: float = 0.0
    """Seconds until a job is due; 0: at once."""
    version: int = 1
    """Of the tables that `migrate` adds."""
    close_timeout: float = 30.0
    clock_offset: float = 0.0
    """Seconds that the wall clock is ahead of the real one."""
    room: int | None = None
    """Bytes that may be written before the disk is full."""
    full: Literal["store", "scratch"] = "store"
    """Which disk that is: of the store, or of the temporary files."""
    state: Literal["memory", "disk"] = "memory"
    """Where the process keeps the state."""
    scratch: str | None = None
    """Folder for temporary files."""
    kill: Kill | None = None
    stderr: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        fields: dict[str, Any] = json.loads(text)
        if fields["kill"] is not None:
            kill = fields["kill"]
            kill["requests"] = tuple(tuple(request) for request in kill["requests"])
            fields["kill"] = Kill(**kill)
        return cls(**fields)
