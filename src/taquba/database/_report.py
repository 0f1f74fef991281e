"""What verifying a store tells."""

from __future__ import annotations

from dataclasses import dataclass

from taquba.database._survey import Survey
from taquba.errors import CorruptStore
from taquba.journal import Position

__all__ = ["CheckedCheckpoint", "Finding", "Progress", "VerifyReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One damage.

    Attributes:
        key: The object, or ``""`` if it is not that of a single one.
        reason: What is wrong with it.
        meaning: What that means for recovery.
    """

    key: str
    reason: str
    meaning: str = ""

    def __str__(self) -> str:
        return f"{self.key or 'the store'}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCheckpoint:
    """One checkpoint, and how it was looked at.

    Attributes:
        seq: Its place in the journal.
        epoch: Its writer's epoch.
        created_at_ms: When it was taken, by its writer's clock.
        outcome: ``"replayed from"`` (loaded, as the base of the replay), ``"compared"``
            (loaded, and equal to what was replayed), ``"damaged"``, ``"void"`` (published late
            by a writer that had been replaced, and not usable), ``"collected"`` (meanwhile), or
            ``"not reached"``.
    """

    seq: int
    epoch: int
    created_at_ms: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far verifying is.

    Attributes:
        stage: What is being done.
        done: How much of it.
        total: Of how much; 0 if that is not known.
    """

    stage: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What verifying a store found.

    Attributes:
        findings: The damages; empty if the store is clean.
        first: The seq at which the replay began; if it was overtaken, began last.
        position: As far as the log could be followed.
        settled: Whether that is the tail. False beside an owner that writes all the time (it
            was followed as far as it was when last listed), and if damage ended it.
        entries: Entries whose digest and place in the chain were checked.
        bytes: Bytes of their bodies.
        replayed: Entries that were applied to a database.
        last_commit_ms: Commit time of the last of them, by its writer's clock; None without.
        checkpoints: The checkpoints there were, oldest first.
        overtaken: How often collection overtook the reader, so that it went on from a newer
            checkpoint.
        survey: What is stored, orphans included.
    """

    findings: tuple[Finding, ...]
    first: int
    position: Position
    settled: bool
    entries: int
    bytes: int
    replayed: int
    last_commit_ms: int | None
    checkpoints: tuple[CheckedCheckpoint, ...]
    overtaken: int
    survey: Survey

    @property
    def clean(self) -> bool:
        """Whether no damage was found."""
        return not self.findings

    @property
    def empty(self) -> bool:
        """Whether there is neither a journal nor a checkpoint."""
        return not (self.position.seq or self.checkpoints or self.findings)

    def raise_for_damage(self) -> None:
        """Raise if damage was found.

        Raises:
            CorruptStore: It was; the message names every object.
        """
        if self.findings:
            key = self.findings[0].key if len(self.findings) == 1 else ""
            raise CorruptStore("; ".join(map(str, self.findings)), key=key)
