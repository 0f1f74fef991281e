"""The queue as its users see it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from datetime import timedelta
from types import NoneType, TracebackType
from typing import Any, Literal, TypeVar, final

from taquba._blocks import AsyncBlock
from taquba._checks import whole, wrong_type
from taquba.clock import Clock, Duration, SystemClock, seconds
from taquba.database import Database, DatabaseConfig, SchemaModule
from taquba.errors import InvalidArgument, TaqubaError
from taquba.journal import JournalConfig
from taquba.metrics import Metrics
from taquba.objectstore import ObjectStore
from taquba.objectstore._counting import counted
from taquba.queue import _validate
from taquba.queue._background import Background
from taquba.queue._calling import Handler
from taquba.queue._calls import Committing
from taquba.queue._config import MAX_PAYLOAD_SIZE, OFFLOAD_PAYLOADS_ABOVE, QueueConfig
from taquba.queue._consuming import Consuming
from taquba.queue._core import Core, JobHook, OwnState, logger
from taquba.queue._effects import Effects, NewJob
from taquba.queue._engine import Engine, OnError, Settlement, Work
from taquba.queue._flow_keys import mark_keys
from taquba.queue._heartbeat import Pulse, heartbeat_interval
from taquba.queue._kv import KeyValue
from taquba.queue._managing import Managing
from taquba.queue._measuring import GuardedTracing
from taquba.queue._observer import Meter, Observer
from taquba.queue._opening import Opening, open_target
from taquba.queue._payloads import Payloads, StoredValue
from taquba.queue._producing import Producing
from taquba.queue._schema import QUEUE_SCHEMA
from taquba.queue._transaction import QueueTransaction, recover
from taquba.queue._worker import Worker
from taquba.tracing import Tracing

__all__ = ["Queue"]

T = TypeVar("T")

_PATIENCE = 5.0
"""Seconds that closing waits, at most, for payloads to be deleted."""


@final
class Queue(AsyncBlock, Producing, Consuming, Managing):
    """Named queues of jobs, and a key-value store, in one bucket or folder.

    Made by `Queue.open`. One process owns a store at a time; opening it again elsewhere
    takes it over, and this one then raises `Fenced`.

    Example:
        >>> async def main() -> bytes:
        ...     async with Queue.open("memory://") as queue:
        ...         await queue.enqueue("mail", b"hello")
        ...         [claim] = await queue.claim_many("mail", 1)
        ...         await queue.ack(claim)
        ...         return claim.job.payload
        >>> asyncio.run(main())
        b'hello'
    """

    def __init__(
        self, *, core: Core, pulse: Pulse, owned_store: ObjectStore | None, close_timeout: float
    ):
        """Not for callers: use `Queue.open`."""
        self._core = core
        self._owned_store = owned_store
        self._close_timeout = close_timeout
        self._background = Background(core)
        self._background_task = asyncio.ensure_future(self._background.run())
        self._pulse = pulse
        pulse.start()
        self._closing: asyncio.Future[None] | None = None
        self._shared: dict[str, Any] = {}
        self._source = OwnState(core)
        self.kv = KeyValue(core, self._source)

    @classmethod
    def open(
        cls,
        target: str | os.PathLike[str] | ObjectStore,
        *,
        storage_options: Mapping[str, Any] | None = None,
        config: QueueConfig = QueueConfig(),  # noqa: B008  (frozen)
        queues: Mapping[str, QueueConfig] | None = None,
        clock: Clock | None = None,
        commit_interval: Duration = 0.01,
        close_timeout: Duration = timedelta(seconds=30),
        retain_history: Duration | None = None,
        state: Literal["memory", "disk"] = "memory",
        scratch: str | os.PathLike[str] | None = None,
        offload_payloads_above: int | None = OFFLOAD_PAYLOADS_ABOVE,
        metrics: Metrics | None = None,
        metrics_interval: Duration | None = None,
        tracing: Tracing | None = None,
        heartbeat: Duration | None = None,
    ) -> Opening[Queue]:
        """Open a store, and take it over from whoever had it.

        Args:
            target: A URL (``s3://bucket/prefix``, ``file:///folder``, ``memory://``), a path
                of a local folder, or an `ObjectStore`, which stays yours to close.
            storage_options: Options of the store's driver, such as credentials or an endpoint,
                and ``driver`` itself: see `taquba.open_store`.
            config: How queues treat their jobs.
            queues: Whole configurations of single queues, instead of `config`. A queue whose name
                has an ``@`` takes that of the part before it, unless it has one of its own.
            clock: Where time, sleep and randomness come from; for tests.
            commit_interval: While a write is under way, the next one starts this much later at
                the earliest. Longer means fewer requests, shorter means less waiting.
            close_timeout: How long `close` waits for commits that the store does not take.
            retain_history: Keep what it takes to rebuild the state as of any moment of this last
                span of time. None keeps no more than is needed to go on.
            state: Where the jobs are while the store is open: ``"memory"``, up to 2 GiB, or
                ``"disk"``, a scratch file, which takes little memory however many there are.
                It is deleted at the end, and nothing depends on it.
            scratch: A local folder with room for scratch files, each as large as the state; the
                system's by default. Checkpoints are put together there in either case.
            offload_payloads_above: Payloads of more bytes than this are objects of their own,
                and not part of the state. None: all are part of it. It may differ from one
                opening to the next.
            heartbeat: Time between two signs of life, 0.1 seconds to a day, which whoever can
                read the store sees: see `heartbeat()`. Each is a write. None: an idle queue
                writes nothing.

            metrics: Where measurements go, see `taquba.metrics`; None measures nothing.
            metrics_interval: How often gauges are told to `metrics`, and the event loop's lag is
                measured. None: gauges are read when `metrics` asks for them, and an idle
                process does nothing.
            tracing: Makes spans of what happens to jobs, see `taquba.tracing`.

        Returns:
            Something to ``await``, or to use with ``async with``, which also closes.

        Raises:
            InvalidUrl: The target is no URL or path that can be opened.
            BucketNotFound, StoreAccessDenied, StoreUnavailable: The store cannot be used.
            UnsafeStore: The store cannot create objects exclusively.
            MissingDependency: The URL needs an extra, which the message names.
            CorruptStore: What is stored is damaged.
            IncompatibleStore: The store was written by a newer taquba.
            StateFull: There is no room for the state in memory or in the scratch folder.
        """
        if not isinstance(config, QueueConfig):
            raise wrong_type("config must be a QueueConfig", config)
        if not isinstance(clock, (Clock, NoneType)) or isinstance(clock, type):
            raise wrong_type("clock must be a Clock", clock)
        for option, mapping in (("queues", queues), ("storage_options", storage_options)):
            if not isinstance(mapping, (Mapping, NoneType)):
                raise wrong_type(f"{option} must be a mapping", mapping)
        configs = dict(queues or {})
        for name, entry in configs.items():
            _validate.queue_name(name)
            if not isinstance(entry, QueueConfig):
                raise wrong_type(f"queues[{name!r}] must be a QueueConfig", entry)
        journal = JournalConfig(commit_interval=seconds(commit_interval, name="commit_interval"))
        timeout = seconds(close_timeout, name="close_timeout")
        folder = _validate.folder(scratch)
        beat_every = heartbeat_interval(heartbeat)
        if offload_payloads_above is not None:
            whole(offload_payloads_above, "offload_payloads_above", 0, MAX_PAYLOAD_SIZE)
        if metrics is not None and (isinstance(metrics, type) or not isinstance(metrics, Metrics)):
            raise wrong_type("metrics must have the methods of taquba.metrics.Metrics", metrics)
        if tracing is not None and (isinstance(tracing, type) or not isinstance(tracing, Tracing)):
            raise wrong_type("tracing must have the methods of taquba.tracing.Tracing", tracing)
        sample_every = None
        if metrics_interval is not None:
            sample_every = seconds(metrics_interval, name="metrics_interval")
            if sample_every == 0 or metrics is None:
                raise InvalidArgument("metrics_interval must be more than 0, and go with metrics")
        database_config = DatabaseConfig(retain_history=retain_history, state=state, scratch=folder)

        async def opening() -> Queue:
            used_clock = clock or SystemClock()
            store, owned = await open_target(target, storage_options)
            database: Database | None = None
            meter = None if metrics is None else Meter(metrics)
            if meter is not None:
                store = counted(store, meter.requested, meter.retried)
            try:
                database = await Database.open(
                    store,
                    [QUEUE_SCHEMA],
                    clock=used_clock,
                    config=database_config,
                    journal_config=journal,
                )
                payloads = Payloads(
                    store,
                    database,
                    used_clock,
                    above=offload_payloads_above,
                    kept_in_history=retain_history is not None,
                )
                core = Core(database, used_clock, config, configs, payloads)
                interrupted = recover(core)
                if interrupted:
                    logger.info("took back %d jobs that the last process had", interrupted)
                await mark_keys(core)
                pulse = Pulse(core, beat_every)
                await pulse.begin()
                core.tracing = None if tracing is None else GuardedTracing(tracing)
                if meter is not None:
                    Observer(core, meter, sample_every).start()
                return cls(
                    core=core,
                    pulse=pulse,
                    owned_store=store if owned else None,
                    close_timeout=timeout,
                )
            except BaseException:
                with contextlib.suppress(TaqubaError):  # what went wrong before says more
                    if database is not None:
                        await database.close(timeout=timeout)
                if owned:
                    await store.close()
                raise

        return Opening(opening)

    # -- life -------------------------------------------------------------------------------

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Store what is committed, and let go. Safe to call twice; always terminates.

        Jobs that are still claimed stay so in the store, and go back to their queues when it
        is opened next.

        Raises:
            CommitUnknown: The store did not take the last commits within `close_timeout`.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._core.observer is not None:
            await self._core.observer.stop()
        self._background_task.cancel()
        await asyncio.gather(self._background_task, return_exceptions=True)
        await self._core.payloads.close(min(self._close_timeout, _PATIENCE))
        await self._pulse.end()
        try:
            await self._core.database.close(timeout=self._close_timeout)
        finally:
            if self._owned_store is not None:
                await self._owned_store.close()

    @property
    def failure(self) -> TaqubaError | None:
        """Why the queue stopped by itself (`Fenced`, for example), or None."""
        return self._core.database.failure

    @property
    def position(self) -> int:
        """How much of the journal there is. What was committed before is shown by a `Follower`
        in whichever process, when its `wait_for` of this number returns.
        """
        return self._core.database.position.seq

    @property
    def clock(self) -> Clock:
        """The clock that this queue goes by."""
        return self._core.clock

    # -- working on jobs --------------------------------------------------------------------

    def worker(
        self,
        queues: str | Sequence[str] | Mapping[str, int],
        handler: Handler,
        *,
        concurrency: int = 16,
        renew: Literal["auto"] | None = "auto",
        job_timeout: Duration | None = None,
        cancel_grace: Duration = 30,
        drain_timeout: Duration | None = None,
        executor: Executor | Callable[[], Executor] | None = None,
        on_cancel: Literal["cooperate", "interrupt"] = "cooperate",
    ) -> Worker:
        """A worker, for ``async with``; or call its `run`.

        What a handler returns says what became of its job: None that it is done, `Effects`
        that it is done and these are to be committed with that; or `Done`, `Retry` or
        `Dead`. A `PermanentError` gives the job up, any other exception is a failed attempt.
        All that ends at one moment is settled in one transaction, which also claims the
        next jobs.

        Args:
            queues: Name of the queue; or several names, or names with weights: while several
                have jobs, each gets its share of the claims. Within a queue, the claim order
                holds, and a queue without jobs holds up no other.
            handler: An async function that takes a `Delivery`; or an ordinary function that
                does, which is called in a thread; or, with an executor of processes, one
                that takes a `JobView`. It must be idempotent: a job whose end was not
                committed is delivered again.
            concurrency: Jobs at the same time.
            renew: ``"auto"``: a job is held for as long as its handler runs. None: for as
                long as the queue's `lease`, unless the handler extends it.
            job_timeout: A handler that runs longer is cancelled, and that counts as a failed
                attempt. Time in which the event loop stood still does not count.
            cancel_grace: How long a handler that was cancelled may take to end, before its
                job is delivered again (or given back) all the same. Threads and processes
                cannot be cancelled, but see `Delivery.should_stop`.
            drain_timeout: How long the jobs under way may take when the worker was stopped,
                before they are cancelled and given back, and the attempt does not count.
                None: as long as they take.
            executor: Where an ordinary function is called: a `concurrent.futures.Executor`,
                which stays the caller's, or a function that makes one, and another one when
                it broke. One that is no `ThreadPoolExecutor` is taken to be processes.
            on_cancel: What `cancel` does to a job that is being worked on. ``"cooperate"``: its
                token fires, and the handler may heed that. ``"interrupt"``: an async handler
                also gets `asyncio.CancelledError`, once, where it waits, and `cancel_grace` to
                clean up. If it ends by that or any other exception, the job is removed; what it
                returns instead still counts. A job that was cancelled before its handler began
                is removed without calling it. Threads and processes cannot be interrupted.

        Raises:
            InvalidArgument: Something of the above is wrong.

        Example:
            >>> async def send(delivery):
            ...     print("to", delivery.headers["to"], delivery.payload)
            >>> async def main():
            ...     async with Queue.open("memory://") as queue:
            ...         await queue.enqueue("emails", b"hello", headers={"to": "ann"})
            ...         async with queue.worker("emails", send, concurrency=8):
            ...             await asyncio.sleep(0)
            ...         return (await queue.stats("emails")).done
            >>> asyncio.run(main())
            to ann b'hello'
            1
        """
        return Worker(
            self._core,
            queues,
            handler,
            concurrency=concurrency,
            renew=renew,
            job_timeout=job_timeout,
            cancel_grace=cancel_grace,
            drain_timeout=drain_timeout,
            executor=executor,
            on_cancel=on_cancel,
        )

    # -- building on the queue --------------------------------------------------------------

    def transaction(self) -> QueueTransaction:
        """Several changes, committed together; for what the calls above do not combine.

        Call `await queue.ready()` before, so that a slow store is not flooded.
        """
        return QueueTransaction(self._core)

    def committing(self, *jobs: NewJob, effects: Effects | None = None) -> Committing:
        """``async with queue.committing(job, effects=effects) as tx:`` a transaction that may
        enqueue these jobs and apply these effects. Their large payloads are stored before it,
        and deleted again unless it did. When the block has ended, its changes are durable.

        Raises:
            StoreError: A payload could not be stored; the block does not run.
            Fenced: Another process took the store over.
        """
        above = self._core.payloads.above
        return self._committing(effects, [job for job in jobs if len(job.payload) > above])

    def owns(self, tx: QueueTransaction) -> bool:
        """Whether this is a transaction of this queue."""
        return tx._core is self._core

    async def prepare(self, settlement: Settlement, effects: Effects | None) -> Settlement:
        """A settlement that applies these effects, once their large payloads are stored.

        In a transaction of one's own, payloads that were not stored before are part of the
        state, however large they are; see also `committing`.

        Raises:
            StoreError: One could not be stored.
        """
        payloads = self._core.payloads
        if effects is None or effects.largest <= payloads.above:
            return settlement
        return await payloads.prepare(settlement, effects)

    async def store_value(self, data: bytes) -> StoredValue:
        """Store a large value of a layer above as objects, before the commit that names it.

        Let the transaction `use` it, or `finish` it if there will be none. The column that
        names it needs an index, see `taquba.queue._payload_holders`; `fetch_value` reads it,
        and `QueueTransaction.forget_value` is for the transaction that removes the name.

        Raises:
            StoreError: It could not be stored; what was is deleted again.
        """
        return await self._core.payloads.stage_value(data)

    @property
    def offloads_above(self) -> float:
        """Payloads of more bytes than this are objects of their own."""
        return self._core.payloads.above

    async def ready(self) -> None:
        """Wait while more is waiting to be stored than may."""
        await self._core.database.admit()

    async def leisure(self) -> None:
        """As `ready`, for background work that removes much and can wait.

        It also waits while a checkpoint is copied, or space is given back, which would have to
        keep up with it.
        """
        await self._core.database.leisure()

    async def barrier(self) -> None:
        """Wait until everything that is visible now is durable."""
        await self._core.database.barrier()

    async def add_tables(self, module: SchemaModule) -> None:
        """Create (or migrate) tables that are kept in the same transactions as the jobs."""
        await self._core.database.add_module(module)

    def engine(
        self,
        queues: str | Mapping[str, int],
        work: Work,
        *,
        concurrency: int = 1,
        on_error: OnError | None = None,
        cancel_grace: float = 30.0,
        renew: Literal["auto"] | None = None,
        time_for_work: float | None = None,
    ) -> Engine:
        """What `worker` stands on, for layers above; call its `run`.

        Args:
            queues: Name of the queue; or names, with their shares of the claims.
            work: Works on one claim, and says how to settle it in a transaction.
            concurrency: Jobs at the same time.
            on_error: Says how to settle a claim whose work raised, or whose settlement
                could not be applied. Default: as a failed attempt.
            cancel_grace: Seconds that cancelled work may take to stop.
            renew: As for `worker`.
            time_for_work: Seconds that the work on a job may take; as `worker`'s `job_timeout`.
        """
        return Engine(
            self._core,
            queues,
            work,
            concurrency=concurrency,
            on_error=on_error,
            cancel_grace=cancel_grace,
            keep_leases=_validate.keeps_leases(renew),
            job_timeout=time_for_work,
        )

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Whatever a layer above keeps once per queue; made when it is first asked for."""
        if name not in self._shared:
            self._shared[name] = make()
        return self._shared[name]  # type: ignore[no-any-return]

    def in_background(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat this while the queue is open, beside its own background work.

        It waits until there is something to do, does a little of it, and returns. If it raises,
        that is logged, and it is called again a little later.
        """
        self._background.add(step)

    def set_dead_letter_hook(self, queue: str, hook: JobHook | None) -> None:
        """Be told, inside the transaction, of jobs that die without a worker's doing."""
        self._core.lane(_validate.queue_name(queue)).dead_letter_hook = hook

    def set_abandoned_hook(self, queue: str, hook: JobHook | None) -> None:
        """Be told, inside the transaction, of jobs whose cancellation was requested and whose
        claims end without being settled: they are removed, and not delivered again.

        Without a hook they go back to their queue like all others.
        """
        self._core.lane(_validate.queue_name(queue)).abandoned_hook = hook

    def on_failure(self, callback: Callable[[TaqubaError], None]) -> None:
        """Be told when the queue stops by itself, for example because it was fenced."""
        self._core.database.on_failure(callback)

    def reap_due(self) -> int:
        """Take back every job whose lease has expired, now; how many. For tests."""
        return self._background.reap_due()
