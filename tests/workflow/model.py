"""What runs should do, in a few lines: no store, no tasks, one moment after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from taquba.workflow import ErrorKind, RunState, TerminalStatus

__all__ = ["Act", "Ended", "Model", "ModelRun", "Script"]

Kind = Literal["continue", "later", "signal", "succeed", "fail", "cancel", "busy", "broken", "hang"]
LEASE_MS = 30_000
FOR_EVER_MS = 10**15


@dataclass(frozen=True, slots=True)
class Act:
    """What the runner does at one delivery."""

    kind: Kind
    after_ms: int = 0
    """How long it waits: for that time to pass, or for a signal under the run's id."""


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
    waiting: bool = False
    """For a signal."""
    given: bytes | None = None
    """The signal that its step waited for."""
    hangs: bool = False
    """Its runner was called, and does not return until it is cancelled."""
    ended: Ended | None = None


@dataclass
class Model:
    """All runs of one queue name, with a worker that is never out of slots."""

    backoff_base_ms: int
    backoff_max_ms: int
    now_ms: int = 0
    runs: dict[str, ModelRun] = field(default_factory=dict)
    lives: int = 0
    calls: list[tuple[str, int, int, bytes | None]] = field(default_factory=list)
    """Every call of the runner: run id, step, attempt, signal."""
    buffered: dict[str, list[tuple[bytes, bool]]] = field(default_factory=dict)
    """By key, the signals that nobody waited for, and which may be replaced."""

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

    def cancel(self, name: str) -> bool:
        run = self.runs.get(name)
        if run is None or run.ended is not None:
            return False
        self._end(run, TerminalStatus.CANCELLED, None, None)
        return True

    def signal(self, key: str, payload: bytes, *, latest: bool) -> tuple[str, bytes | None]:
        """What becomes of it, and what it replaces."""
        run = self.runs.get(key)
        if run is not None and run.ended is None and run.waiting:
            run.waiting, run.given, run.due_ms = False, payload, self.now_ms
            self.run_due()
            return "delivered", None
        kept = self.buffered.setdefault(key, [])
        replaced = next((pair for pair in kept if latest and pair[1]), None)
        if replaced is not None:
            kept.remove(replaced)
        kept.append((payload, latest))
        return "buffered", None if replaced is None else replaced[0]

    def clear(self, key: str) -> int:
        return len(self.buffered.pop(key, []))

    def restart(self, *, given_back: bool) -> None:
        """Another process goes on; what hung in the old one was given back, or interrupted."""
        for run in self._active():
            if not run.hangs:
                continue
            run.hangs, run.due_ms = False, self.now_ms
            if given_back:
                run.attempts -= 1
            elif run.attempts >= run.max_attempts:
                self._end(run, TerminalStatus.FAILED, "claim interrupted by process exit", None)
        self.run_due()

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
        if run.ended is not None:
            return RunState.TERMINATED, run.step
        return (RunState.RUNNING if run.hangs else RunState.PENDING), run.step

    def _active(self) -> list[ModelRun]:
        return [run for run in self.runs.values() if run.ended is None]

    def _deliver(self, name: str, run: ModelRun) -> None:
        if run.hangs:  # until its lease ended
            run.hangs = False
            if run.attempts >= run.max_attempts:
                self._end(run, TerminalStatus.FAILED, "lease expired", None)
                return
        run.waiting = False  # its time is over, if it waited
        act = run.script[run.calls] if run.calls < len(run.script) else SUCCEED
        run.attempts += 1
        run.calls += 1
        self.calls.append((name, run.step, run.attempts, run.given))
        match act.kind:
            case "continue" | "later":
                run.step += 1
                run.attempts, run.given = 0, None
                run.due_ms = self.now_ms + act.after_ms
            case "signal":
                run.step += 1
                run.attempts, run.given = 0, None
                run.due_ms = self.now_ms + act.after_ms
                if self.buffered.get(name):
                    run.given, _ = self.buffered[name].pop(0)
                    run.due_ms = self.now_ms
                elif act.after_ms:
                    run.waiting = True
            case "hang":
                run.hangs = True
                run.due_ms = self.now_ms + LEASE_MS
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
        run.hangs = run.waiting = False
        run.ended = Ended(status, error, kind, run.step, self.now_ms, result)
