"""The journal, as its one writer sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from taquba.clock import Clock, wait_for_event
from taquba.errors import Closed, CommitUnknown, InvalidArgument, TaqubaError
from taquba.journal._config import JournalConfig, JournalStatistics
from taquba.journal._entry import Kind, encode_entry
from taquba.journal._futures import Gate, fail_future, fresh
from taquba.journal._machine import StateMachine
from taquba.journal._pipeline import Pipeline
from taquba.journal._position import Position
from taquba.journal._supervisor import Supervisor
from taquba.journal._takeover import take_over
from taquba.objectstore import ObjectStore

__all__ = ["Journal"]

logger = logging.getLogger("taquba.journal")

_TIMER_SLACK = 1e-6
"""A timer may wake a rounding error early."""


class Journal:
    """A fenced, group-committed, pipelined log, open for writing.

    Changes are counted in batches. `append` says that the state machine changed, and returns
    the batch's number, its *ticket*; when the batch is sealed the machine hands over its
    bytes, and once the entry and all before it are stored, the ticket is acknowledged.
    """

    def __init__(
        self,
        store: ObjectStore,
        machine: StateMachine,
        *,
        clock: Clock,
        config: JournalConfig,
        writer: bytes,
        position: Position,
    ) -> None:
        """Use `open`: it makes this writer the owner."""
        self._machine = machine
        self._clock = clock
        self._config = config
        self._writer = writer
        self._position = position
        self._committed_at_ms: int | None = None
        self._loop = asyncio.get_running_loop()
        self._create_future = self._loop.create_future
        self._tasks = Supervisor(self._crashed)
        self._pipeline = Pipeline(
            store,
            clock=clock,
            config=config,
            window=position.window,
            tasks=self._tasks,
            acknowledge=self._acknowledge,
            progress=self._progress,
            fail=self._fail,
        )
        self._ticket = 1
        """The batch that appends go to; `_pending` tells whether it has any."""
        self._pending = 0
        self._max_batch = config.max_batch
        self._fast_appends = config.max_batch - 1
        self._acknowledged = 0
        self._stored_before = position.seq
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}
        """By ticket; a ticket is in here from its first append to its acknowledgement."""
        self._stored_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._admission = Gate()
        self._last_seal = clock.monotonic() - config.commit_interval
        self._seal_scheduled = False
        self._seal_later = False
        self._pace_wanted = asyncio.Event()
        self._failure: TaqubaError | None = None
        self._refusal: TaqubaError | None = None
        """What appends are refused with, once the journal is closing or failed."""
        self._drained = asyncio.Event()
        self._tasks.start(self._pace(), name="taquba journal pace")

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        machine: StateMachine,
        *,
        clock: Clock,
        config: JournalConfig | None = None,
        metadata: bytes = b"",
    ) -> Journal:
        """Take the store over: replay into `machine`, and fence every writer before.

        Args:
            store: Where the log is.
            machine: The state; brought to the tail when this returns.
            clock: Time and randomness.
            config: Settings.
            metadata: Kept in this writer's epoch entry; later openers `check` it.

        Raises:
            CorruptStore: The log is damaged.
            IncompatibleStore: A newer version wrote it.
            StoreError: The store failed, or refuses.
        """
        config = JournalConfig() if config is None else config
        writer = clock.random_bytes(16)
        position = await take_over(
            store, machine, clock=clock, config=config, writer=writer, metadata=metadata
        )
        return cls(store, machine, clock=clock, config=config, writer=writer, position=position)

    def __repr__(self) -> str:
        state = "open" if self._refusal is None else type(self._refusal).__name__
        return f"<Journal epoch {self.epoch} at {self._position.seq}, {state}>"

    # -- appending ---------------------------------------------------------------------

    def append(self) -> int:
        """Say that the state machine changed; the ticket of the batch that will hold it.

        Raises:
            Fenced, Closed, CommitUnknown: The journal stopped.
        """
        pending = self._pending
        if 0 < pending < self._fast_appends:
            self._pending = pending + 1
            return self._ticket
        return self._append_slowly()

    def _append_slowly(self) -> int:
        if self._refusal is not None:
            raise fresh(self._refusal)
        self._pending += 1
        if self._pending == 1:
            self._waiting[self._ticket] = []
        self._update_admission()
        self._schedule()
        return self._ticket

    def durable(self, ticket: int) -> asyncio.Future[None]:
        """A future of the caller's own that is done when `ticket` is acknowledged.

        It fails with `Fenced` (or whatever else stopped the journal). Giving it up, or
        cancelling it, changes nothing: the commit may still happen.
        """
        future = self._create_future()
        waiting = self._waiting.get(ticket)
        if waiting is not None:
            waiting.append(future)
        elif ticket <= self._acknowledged:
            future.set_result(None)
        elif self._refusal is not None:
            fail_future(future, self._refusal)
        else:
            raise InvalidArgument(
                f"ticket {ticket} was never given out: the last is {self.last_ticket}"
            )
        return future

    @property
    def last_ticket(self) -> int:
        """The newest ticket given out; 0 if there is none."""
        return self._ticket if self._pending else self._ticket - 1

    @property
    def acknowledged_ticket(self) -> int:
        """The newest ticket that is durable, and so is every one before it."""
        return self._acknowledged

    @property
    def admitting(self) -> bool:
        """Whether new transactions should begin: not too much waits to become durable."""
        return self._admission.is_open

    async def admit(self) -> None:
        """Wait until `admitting`.

        Raises:
            Fenced, Closed, CommitUnknown: The journal stopped.
        """
        while True:
            if self._refusal is not None:
                raise fresh(self._refusal)
            if self._admission.is_open:
                return
            await self._admission.wait()

    # -- sealing -----------------------------------------------------------------------

    def seal_now(self) -> Position:
        """Seal what was appended, if anything was, without waiting for the usual moment.

        Raises:
            Fenced, Closed, CommitUnknown: The journal stopped, maybe just now.
        """
        if self._failure is not None:
            raise fresh(self._failure)
        if self._pending:
            self._seal()
            if self._failure is not None:
                raise fresh(self._failure)
        return self._position

    def _schedule(self) -> None:
        """See to it that the open batch is sealed at its time."""
        if not self._pending or self._seal_scheduled or self._failure is not None:
            return
        outstanding = self._pipeline.outstanding
        if outstanding == 0 or (
            self._pending >= self._max_batch and outstanding < self._position.window
        ):
            # Not now: all that is about to run in this round of the loop joins the batch.
            self._seal_scheduled = True
            self._loop.call_soon(self._seal_scheduled_batch)
        elif outstanding < self._position.window:
            self._pace_wanted.set()
        # Otherwise the next acknowledgement comes here again.

    def linger(self) -> None:
        """Let a seal that is due wait for one more round of the event loop.

        For what was put off to the next round, such as the claims of all that this one makes
        pending: it joins the batch.
        """
        if self._seal_scheduled:
            self._seal_later = True

    def _seal_scheduled_batch(self) -> None:
        if self._seal_later:
            self._seal_later = False
            self._loop.call_soon(self._seal_lingering_batch)
        else:
            self._seal_lingering_batch()

    def _seal_lingering_batch(self) -> None:
        self._seal_scheduled = self._seal_later = False
        if self._pending and self._failure is None:
            if self._pipeline.outstanding < self._position.window:
                self._seal()
            else:
                self._schedule()

    async def _pace(self) -> None:
        """Seal on time while entries are in flight."""
        while True:
            await self._pace_wanted.wait()
            self._pace_wanted.clear()
            while self._pending and 0 < self._pipeline.outstanding < self._position.window:
                due = self._last_seal + self._config.commit_interval
                delay = due - self._clock.monotonic()
                if delay > _TIMER_SLACK:
                    await self._clock.sleep(delay)
                else:
                    self._seal()

    def _seal(self) -> None:
        """Make the open batch an entry. Failing stops the journal; it does not raise."""
        position = self._position
        try:
            body = self._machine.seal(position.seq)
            ticket = self._ticket
            self._ticket += 1
            self._pending = 0
            if body is None:
                self._finish_empty_batch(ticket)
                return
            now_ms = self._clock.now_ms()
            data, digest = encode_entry(
                kind=Kind.ORDINARY,
                epoch=position.epoch,
                seq=position.seq,
                writer=self._writer,
                previous=position.digest,
                committed_at_ms=now_ms,
                window=position.window,
                durable_before=self._stored_before,
                body=body,
            )
            self._committed_at_ms = now_ms
            self._position = Position(
                position.seq + 1, position.epoch, digest, position.window, position.epochs
            )
            self._last_seal = self._clock.monotonic()
            self._pipeline.push(position.seq, data, ticket)
            self._machine.sealed(self._position)
        except Exception as error:
            self._crashed(error)
        self._update_admission()

    def _finish_empty_batch(self, ticket: int) -> None:
        if self._pipeline.outstanding:
            self._pipeline.extend_last(ticket)
        else:
            self._acknowledge(self._stored_before - 1, ticket)
            self._progress()

    # -- acknowledging -----------------------------------------------------------------

    def _acknowledge(self, seq: int, ticket: int) -> None:
        self._stored_before = seq + 1
        while self._acknowledged < ticket:
            self._acknowledged += 1
            for future in self._waiting.pop(self._acknowledged, ()):
                if not future.done():
                    future.set_result(None)

    def _progress(self) -> None:
        """Something was acknowledged: wake who waits for that, and go on sealing."""
        if self._stored_waiters:
            waiters, self._stored_waiters = self._stored_waiters, []
            for seq, future in waiters:
                if seq > self._stored_before:
                    self._stored_waiters.append((seq, future))
                elif not future.done():
                    future.set_result(None)
        self._update_admission()
        if self._refusal is not None and not self._pipeline.outstanding and not self._pending:
            self._drained.set()
        self._schedule()

    def _update_admission(self) -> None:
        self._admission.set(
            self._pipeline.unacknowledged_bytes < self._config.max_unacknowledged_bytes
            and self._pending < self._max_batch
        )

    async def wait_stored(self, seq: int) -> None:
        """Wait until every entry before `seq` is stored.

        Raises:
            Fenced, Closed, CommitUnknown: The journal stopped before.
        """
        if seq <= self._stored_before:
            return
        if self._failure is not None:
            raise fresh(self._failure)
        future = self._create_future()
        self._stored_waiters.append((seq, future))
        await future

    # -- what it is --------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """The place after the last sealed entry."""
        return self._position

    @property
    def committed_at_ms(self) -> int | None:
        """Commit time of the last entry that was sealed here, if one was."""
        return self._committed_at_ms

    @property
    def epoch(self) -> int:
        """This writer's reign."""
        return self._position.epoch

    @property
    def writer_id(self) -> str:
        """This writer's id, in hex."""
        return self._writer.hex()

    @property
    def failure(self) -> TaqubaError | None:
        """What stopped the journal, if it did not stop because it was closed."""
        return self._failure

    def watch(self, *, stored: Callable[[float, int], None], retried: Callable[[], None]) -> None:
        """Be told of each entry that is stored, with the seconds since it was sealed and its
        bytes; and of each that is tried again. Neither may raise.
        """
        self._pipeline.on_stored = stored
        self._pipeline.on_retry = retried

    def statistics(self) -> JournalStatistics:
        """Counts since the journal was opened."""
        pipeline = self._pipeline
        return JournalStatistics(
            entries=pipeline.entries,
            bytes=pipeline.bytes,
            puts=pipeline.puts,
            failed_puts=pipeline.failed_puts,
            in_flight=pipeline.in_flight,
            queued=pipeline.outstanding - pipeline.in_flight,
            unacknowledged_bytes=pipeline.unacknowledged_bytes,
        )

    # -- the end -----------------------------------------------------------------------

    async def close(self, *, timeout: float | None = None) -> None:
        """Seal what is left and wait until it is acknowledged; then stop.

        Closing a journal that failed, or is closed, is fine and raises nothing.

        Args:
            timeout: Seconds to wait for a store that does not answer; `None` waits for ever.

        Raises:
            CommitUnknown: The time was up; what was not acknowledged may still become durable.
            Fenced: Another process took over while this waited.
        """
        failed_before = self._failure is not None
        if self._refusal is None:
            self._refusal = Closed("the journal was closed: open the store again to go on")
            if self._pending:
                self._seal()
            if not self._pipeline.outstanding:
                self._drained.set()
            self._admission.wake()
        drained = False
        try:
            drained = await wait_for_event(self._drained, timeout, self._clock)
        finally:
            if not drained:
                unknown = CommitUnknown(
                    "closing did not wait for the last commits: they may still become durable"
                    f"{self._because_of(self._pipeline.trouble)}. Open the store again to learn"
                )
                unknown.__cause__ = self._pipeline.trouble
                self._fail(unknown)
            self._end_waiters(self._failure or self._refusal)
            await self._tasks.stop()
        if self._failure is not None and not failed_before:
            raise fresh(self._failure)

    @staticmethod
    def _because_of(trouble: Exception | None) -> str:
        return "" if trouble is None else f" (they were not stored: {trouble})"

    def _crashed(self, error: BaseException) -> None:
        if isinstance(error, TaqubaError):
            self._fail(error)
            return
        failure = Closed(f"the journal stopped after an internal error: {error!r}")
        failure.__cause__ = error
        self._fail(failure)

    def _fail(self, error: TaqubaError) -> None:
        """Stop for good: every waiter fails, nothing is acknowledged any more."""
        if self._failure is not None:
            return
        self._failure = self._refusal = error
        self._pipeline.halt()
        if self._pending:
            self._pending = 0
            self._ticket += 1  # so that `last_ticket` still counts it as outstanding
        self._drained.set()
        self._tasks.cancel()
        logger.warning("the journal of epoch %d stopped: %s", self.epoch, error)
        self._end_waiters(error)
        try:
            self._machine.failed(error)
        except Exception:
            logger.exception("the state machine failed to note that the journal stopped")

    def _end_waiters(self, error: TaqubaError) -> None:
        waiting, self._waiting = self._waiting, {}
        stored, self._stored_waiters = self._stored_waiters, []
        for futures in waiting.values():
            for future in futures:
                fail_future(future, error)
        for _, future in stored:
            fail_future(future, error)
        self._admission.wake()
