"""What all calls of an open queue stand on."""

from __future__ import annotations

from types import TracebackType

from taquba._checks import wrong_type
from taquba.errors import DuplicateJobId, InvalidState, JobNotFound
from taquba.queue._core import Core
from taquba.queue._effects import Effects
from taquba.queue._reading import QueueReader
from taquba.queue._records import Claim, Job
from taquba.queue._transaction import QueueTransaction

__all__ = ["Calls", "check_claim", "check_effects"]


class Calls(QueueReader):
    """A queue that changes: each call is one transaction, or none."""

    _core: Core

    def _committing(self) -> Committing:
        return Committing(self._core)


class Committing:
    """``async with``: admission, a transaction around the body, durability after it."""

    __slots__ = ("_core", "_tx")

    def __init__(self, core: Core) -> None:
        self._core = core

    async def __aenter__(self) -> QueueTransaction:
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
        self._tx.__exit__(kind, error, trace)
        if kind is None:
            await self._tx.confirmed()
        elif issubclass(kind, (DuplicateJobId, JobNotFound, InvalidState)):
            await self._core.database.barrier()


def check_claim(claim: object) -> None:
    if not isinstance(claim, Claim):
        hint = ": a job that was read cannot be settled" if isinstance(claim, Job) else ""
        raise wrong_type("expected a Claim from claim() or claim_many()", claim, hint)


def check_effects(effects: object) -> None:
    if effects is not None and not isinstance(effects, Effects):
        raise wrong_type("effects must be an Effects", effects)
