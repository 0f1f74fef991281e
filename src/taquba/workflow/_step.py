"""What a runner is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Self, final

from taquba.clock import Duration, seconds
from taquba.queue import CancelToken
from taquba.workflow._blocking_memo import BlockingMemo
from taquba.workflow._headers import own_headers
from taquba.workflow._memo import MEMO_INLINE_LIMIT, RUN_SCOPE, Memo
from taquba.workflow._queues import workflow_of
from taquba.workflow._step_kv import BlockingKeyValueReader
from taquba.workflow._submitting import RunEffects

if TYPE_CHECKING:
    from taquba.queue import Claim, KeyValueReader, Queue
    from taquba.workflow._runs import RunTable

__all__ = ["DETACHED_LIFE", "BlockingStep", "Step", "StepBase", "StepLease"]

DETACHED_LIFE = 0
"""Of steps that belong to no run; lives of runs begin with 1."""


@final
class StepLease:
    """How long a step may take before it is cancelled and run again."""

    __slots__ = ("_claim",)

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def ensure_at_least(self, remaining: Duration) -> None:
        """Extend the lease, if it would end sooner than this (plus 5 s to settle) from now.

        Needed only in runtimes with ``renew=None``. Never longer than `step_timeout`.

        Raises:
            ClaimLost: The lease has expired.
            CancelRequested: Cancellation was asked for.
        """
        self._claim.ensure_at_least(seconds(remaining, name="remaining"))

    @property
    def remaining(self) -> float:
        """Seconds that are left; infinite while the step is held, negative when it is overdue."""
        return self._claim._lease.remaining()


class StepBase:
    """One delivery of one step of a run."""

    __slots__ = (
        "_claim",
        "_effects",
        "_life",
        "_memo_inline_limit",
        "_queue",
        "_runs",
        "number",
        "run_id",
        "signal",
    )

    run_id: str
    """The run."""
    number: int
    """The step's number; a run begins with step 0."""
    signal: bytes | None
    """The signal that the step waited for, the same on every attempt. None: none came in time, or
    it waited for none."""

    def __init__(
        self,
        queue: Queue,
        runs: RunTable,
        claim: Claim,
        life: int,
        run_id: str,
        number: int,
        memo_inline_limit: int | None = MEMO_INLINE_LIMIT,
    ) -> None:
        self._queue = queue
        self._memo_inline_limit = memo_inline_limit
        self._runs = runs
        self._claim = claim
        self._life = life
        self._effects: RunEffects | None = None
        self.run_id = run_id
        self.number = number
        self.signal = None

    @classmethod
    def detached(
        cls,
        payload: bytes = b"",
        *,
        number: int = 0,
        attempt: int = 1,
        max_attempts: int = 3,
        signal: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        run_id: str = "detached",
        workflow: str | None = None,
        revision: str | None = None,
    ) -> Self:
        """A step that no runtime knows of, to call a runner with in a test.

        Its memos keep what they are given, encoded as usual, for as long as the step is there.
        Its lease never ends and can always be extended. Its effects are checked and can be
        inspected, and nothing is done with them. `taquba.testing.request_cancel` fires its
        token.

        Raises:
            InvalidType, InvalidArgument, InvalidRunId, ReservedName, ValueTooLarge: No runtime
                could give a runner such a step.

        Example:
            >>> import asyncio
            >>> from taquba.workflow import Outcome, Step, Succeed
            >>> async def runner(step: Step) -> Outcome:
            ...     return Succeed(await step.memo.memoized("text", step.payload.upper))
            >>> asyncio.run(runner(Step.detached(b"hello")))
            Succeed(result=b'HELLO')
        """
        from taquba.workflow._detached import detached_step

        return detached_step(
            cls,
            payload,
            number=number,
            attempt=attempt,
            max_attempts=max_attempts,
            signal=signal,
            headers=headers,
            run_id=run_id,
            workflow=workflow,
            revision=revision,
        )

    @property
    def payload(self) -> bytes:
        """The run's input in step 0; later, what the step before passed to `Continue`."""
        return self._claim.job.payload

    @property
    def headers(self) -> dict[str, str]:
        """The submitter's headers."""
        return own_headers(self._claim.job.headers)

    @property
    def workflow(self) -> str | None:
        """The workflow that the run was submitted for, if that has a name."""
        return workflow_of(self._claim.job.queue)[0]

    @property
    def revision(self) -> str | None:
        """The revision of that workflow."""
        return workflow_of(self._claim.job.queue)[1]

    @property
    def attempt(self) -> int:
        """1 for the first delivery of this step."""
        return self._claim.job.attempts

    @property
    def max_attempts(self) -> int:
        """Deliveries of this step before the run fails."""
        return self._claim.job.max_attempts

    @property
    def is_last_attempt(self) -> bool:
        """Whether an error now ends the run."""
        return self._claim.job.is_last_attempt

    @property
    def effects(self) -> RunEffects:
        """Jobs to enqueue, keys to write and runs to submit, committed together with this step's
        outcome.

        Dropped if the step ends with an error or its lease expires.
        """
        if self._effects is None:
            self._effects = RunEffects(self._runs)
        return self._effects

    @property
    def lease(self) -> StepLease:
        """How long this step may still take."""
        return StepLease(self._claim)

    @property
    def cancel_token(self) -> CancelToken:
        """Says whether the run was cancelled; it is up to the step to heed it.

        Return `Cancel` then, to have a reason and this step's effects recorded. Whatever else
        the step returns or raises, the run ends as cancelled, and the effects are dropped.
        """
        return self._claim.cancel_token

    def _memo_use(self) -> tuple[int, int]:
        """Hits and misses of both memos, as far as they were used."""
        hits = misses = 0
        for memo in self._memos():
            if memo is not None:
                stats = memo.stats()
                hits, misses = hits + stats.hits, misses + stats.misses
        return hits, misses

    def _memos(self) -> Iterable[Memo | BlockingMemo | None]:
        return ()

    def _new_memo(self, scope: int) -> Memo:
        return Memo(self._queue, self._claim, self._life, scope, self._memo_inline_limit)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(run_id={self.run_id!r}, number={self.number}, "
            f"attempt={self.attempt}/{self.max_attempts})"
        )


@final
class Step(StepBase):
    """One delivery of one step of a run, as an async runner sees it."""

    __slots__ = ("_memo", "_run_memo")

    def __init__(
        self,
        queue: Queue,
        runs: RunTable,
        claim: Claim,
        life: int,
        run_id: str,
        number: int,
        memo_inline_limit: int | None = MEMO_INLINE_LIMIT,
    ) -> None:
        super().__init__(queue, runs, claim, life, run_id, number, memo_inline_limit)
        self._memo: Memo | None = None
        self._run_memo: Memo | None = None

    def _memos(self) -> Iterable[Memo | None]:
        return self._memo, self._run_memo

    @property
    def memo(self) -> Memo:
        """Values kept for this step, over all its attempts."""
        if self._memo is None:
            self._memo = self._new_memo(self.number)
        return self._memo

    @property
    def run_memo(self) -> Memo:
        """Values kept for the run, over all its steps."""
        if self._run_memo is None:
            self._run_memo = self._new_memo(RUN_SCOPE)
        return self._run_memo

    @property
    def kv(self) -> KeyValueReader:
        """The key-value store, to be read: what is committed, so not what this step stages."""
        return self._queue.kv.reader()


@final
class BlockingStep(StepBase):
    """One delivery of one step of a run, as a runner that is an ordinary function sees it.

    Such a runner is called in a thread; `memo` and `run_memo` block it, not the event loop.
    """

    __slots__ = ("memo", "run_memo")

    memo: BlockingMemo
    """Values kept for this step, over all its attempts."""
    run_memo: BlockingMemo
    """Values kept for the run, over all its steps."""

    @property
    def kv(self) -> BlockingKeyValueReader:
        """The key-value store, to be read: what is committed, so not what this step stages."""
        return BlockingKeyValueReader(self._queue.kv.reader(), self.run_memo)

    def __init__(
        self,
        queue: Queue,
        runs: RunTable,
        claim: Claim,
        life: int,
        run_id: str,
        number: int,
        memo_inline_limit: int | None = MEMO_INLINE_LIMIT,
    ) -> None:
        super().__init__(queue, runs, claim, life, run_id, number, memo_inline_limit)
        detached = life == DETACHED_LIFE
        self.memo = BlockingMemo(self._new_memo(number), detached=detached)
        self.run_memo = BlockingMemo(self._new_memo(RUN_SCOPE), detached=detached)

    def _memos(self) -> Iterable[BlockingMemo]:
        return self.memo, self.run_memo
