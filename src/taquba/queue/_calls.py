"""What all calls of an open queue stand on."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from taquba._checks import wrong_type
from taquba.errors import DuplicateJobId, InputMismatch, InvalidState, JobNotFound
from taquba.queue._core import Core
from taquba.queue._effects import Effects
from taquba.queue._reading import QueueReader
from taquba.queue._records import Claim, Job
from taquba.queue._transaction import QueueTransaction

if TYPE_CHECKING:
    from taquba.queue._effects import NewJob
    from taquba.queue._payloads import Staged

__all__ = ["Calls", "Committing", "check_claim", "check_effects"]


class Calls(QueueReader):
    """A queue that changes: each call is one transaction, or none."""

    _core: Core

    def _committing(
        self,
        effects: Effects | None = None,
        large: Iterable[NewJob] = (),
        staged: Staged | None = None,
    ) -> Committing:
        """A transaction with these effects and with jobs whose payloads may be large; what is
        large becomes an object before it.
        """
        if effects is not None and effects.largest > self._core.payloads.above:
            large = (*large, *effects.all_jobs())
        return Committing(self._core, large, staged)


class Committing:
    """``async with``: admission, a transaction around the body, durability after it.

    Large payloads are stored before, and deleted again unless the transaction names them.
    """

    __slots__ = ("_core", "_large", "_staged", "_tx")

    def __init__(self, core: Core, large: Iterable[NewJob], staged: Staged | None) -> None:
        self._core = core
        self._large = large
        self._staged = staged

    async def __aenter__(self) -> QueueTransaction:
        if not self._large and self._staged is None:
            return await self._enter()
        self._staged = await self._core.payloads.stage(self._large, self._staged)
        try:
            tx = await self._enter()
        except BaseException:
            self._staged.finish()
            raise
        tx._stored = dict(self._staged.stored)
        return tx

    async def _enter(self) -> QueueTransaction:
        if not self._core.database.admitting:
            await self._core.database.admit()
        self._tx = QueueTransaction(self._core)
        return self._tx.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._tx.__exit__(kind, error, trace)
        finally:
            if self._staged is not None:
                self._staged.finish()
        if kind is None:
            await self._tx.confirmed()
        elif issubclass(kind, (DuplicateJobId, InputMismatch, JobNotFound, InvalidState)):
            await self._core.database.barrier()


def check_claim(claim: object) -> None:
    if not isinstance(claim, Claim):
        hint = ": a job that was read cannot be settled" if isinstance(claim, Job) else ""
        raise wrong_type("expected a Claim from claim() or claim_many()", claim, hint)


def check_effects(effects: object) -> None:
    if effects is not None and not isinstance(effects, Effects):
        raise wrong_type("effects must be an Effects", effects)
