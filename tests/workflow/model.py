"""What runs should do, in a few lines: no store, no tasks, one moment after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from taquba.workflow import ErrorKind, RunState, TerminalStatus

__all__ = ["Act", "Ended", "Model", "ModelRun", "Script"]

Kind = Literal["continue", "later", "succeed", "fail", "cancel", "busy", "broken"]


@dataclass(frozen=True, slots=True)
class Act:
    """What the runner does at one delivery."""

    kind: Kind
    after_ms: int = 0


Script = tuple[Act, ...]
"""Act n happens at the n-th delivery of a life; past the end, the run succeeds."""
SUCCEED = Act("succeed")


@dataclass(frozen=True, slots=True)
class Ended:
    status: TerminalStatus
    error: str | None
    kind: ErrorKind | None
    step: int
    at_ms: int
    result: bytes | None


@dataclass
class ModelRun:
    """One life of a run id."""

    text: bytes
    script: Script
    max_attempts: int
    due_ms: int
    step: int = 0
    attempts: int = 0
    calls: int = 0
    """Deliveries so far, over all steps: how often the runner was called."""
    ended: Ended | None = None


@dataclass
class Model:
    """All runs of one queue name, with a worker that is never out of slots."""

    backoff_base_ms: int
    backoff_max_ms: int
    now_ms: int = 0
    runs: dict[str, ModelRun] = field(default_factory=dict)
    lives: int = 0
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    """Every call of the runner: run id, step, attempt."""

    def submit(
        self, name: str, text: bytes, script: Script, max_attempts: int, due_ms: int
    ) -> Literal["new", "duplicate", "mismatch"]:
        known = self.runs.get(name)
        if known is not None and known.ended is None:
            return "duplicate" if known.text == text else "mismatch"
        self.lives += 1
        self.runs[name] = ModelRun(text, script, max_attempts, max(due_ms, self.now_ms))
        self.run_due()
        return "new"

    def advance_to(self, now_ms: int) -> None:
        """Let time pass, stopping at each moment at which something is due."""
        while True:
            due = min((run.due_ms for run in self._active()), default=now_ms + 1)
            if due > now_ms:
                break
            self.now_ms = max(self.now_ms, due)
            self.run_due()
        self.now_ms = now_ms

    def run_due(self) -> None:
        for name, run in self.runs.items():
            while run.ended is None and run.due_ms <= self.now_ms:
                self._deliver(name, run)

    def state(self, name: str) -> tuple[RunState, int] | None:
        run = self.runs.get(name)
        if run is None:
            return None
        return (RunState.PENDING if run.ended is None else RunState.TERMINATED), run.step

    def _active(self) -> list[ModelRun]:
        return [run for run in self.runs.values() if run.ended is None]

    def _deliver(self, name: str, run: ModelRun) -> None:
        act = run.script[run.calls] if run.calls < len(run.script) else SUCCEED
        run.attempts += 1
        run.calls += 1
        self.calls.append((name, run.step, run.attempts))
        match act.kind:
            case "continue" | "later":
                run.step += 1
                run.attempts = 0
                run.due_ms = self.now_ms + act.after_ms
            case "succeed":
                self._end(run, TerminalStatus.SUCCEEDED, None, None, b"%d" % run.step)
            case "fail":
                self._end(run, TerminalStatus.FAILED, "failed", ErrorKind.PERMANENT)
            case "cancel":
                self._end(run, TerminalStatus.CANCELLED, "cancelled", None)
            case "broken":
                self._end(run, TerminalStatus.FAILED, "broken", ErrorKind.PERMANENT)
            case "busy":
                if run.attempts >= run.max_attempts:
                    self._end(run, TerminalStatus.FAILED, "busy", ErrorKind.TRANSIENT)
                else:
                    backoff = self.backoff_base_ms * 2 ** (run.attempts - 1)
                    run.due_ms = self.now_ms + min(backoff, self.backoff_max_ms)

    def _end(
        self,
        run: ModelRun,
        status: TerminalStatus,
        error: str | None,
        kind: ErrorKind | None,
        result: bytes | None = None,
    ) -> None:
        run.ended = Ended(status, error, kind, run.step, self.now_ms, result)
