"""What is known of a store while it is verified."""

from __future__ import annotations

from dataclasses import replace

from taquba.database._packs import CHUNK_PREFIX
from taquba.database._report import Finding
from taquba.database._survey import chunk_keys
from taquba.journal import (
    JOURNAL_PREFIX,
    Checkpoint,
    EpochMark,
    checkpoint_key,
    seq_of_key,
)

__all__ = ["Notes"]

_UNUSED = ("void", "collected")


class Notes:
    """The checkpoints, and what was found."""

    def __init__(self) -> None:
        self.checkpoints: dict[int, Checkpoint] = {}
        self.outcomes: dict[int, str] = {}
        """How each checkpoint was looked at, and with which result."""
        self.unreadable: set[int] = set()
        """Checkpoints whose manifests are damaged."""
        self.replayable: set[int] = set()
        """Checkpoints whose state was replayed from an older one, or from the start."""
        self._findings: dict[tuple[str, str], Finding] = {}

    def candidate(self, after: int) -> Checkpoint | None:
        """The first checkpoint beyond a place that may be a start."""
        for seq in sorted(self.checkpoints):
            if seq > after and self.outcomes.get(seq) not in _UNUSED:
                return self.checkpoints[seq]
        return None

    def is_older(self, checkpoint: Checkpoint) -> bool:
        """Whether a later epoch has a checkpoint, so that its writer may have collected this."""
        newest = max(self.checkpoints.values(), key=lambda other: other.position.seq)
        return checkpoint.position.epoch < newest.position.epoch

    def protects(self, seq: int) -> bool:
        """Whether what comes after a checkpoint that is there must be there, too.

        A replaced writer may have published it after its successor had collected that.
        """
        outcome = self.outcomes.get(seq)
        return outcome != "void" and not (outcome is None and self.is_older(self.checkpoints[seq]))

    def found(self, key: str, reason: str, meaning: str = "") -> None:
        """Note a damage; twice is once."""
        # Several checkpoints may need the same chunk.
        same = (key, "") if key.startswith(CHUNK_PREFIX) else (key, reason)
        self._findings.setdefault(same, Finding(key=key, reason=reason, meaning=meaning))

    def complained_of(self, key: str) -> bool:
        """Whether a damage of this object is noted."""
        return any(finding.key == key for finding in self._findings.values())

    def findings(self, epochs: tuple[EpochMark, ...]) -> tuple[Finding, ...]:
        """Every damage, with what it means for recovery; `epochs` are those of the log."""
        return tuple(
            replace(finding, meaning=finding.meaning or self._meaning(finding.key, epochs))
            for finding in self._findings.values()
        )

    def _meaning(self, key: str, epochs: tuple[EpochMark, ...]) -> str:
        usable = [seq for seq in self.checkpoints if self.outcomes.get(seq) not in _UNUSED]
        newest = max([*usable, *self.unreadable], default=None)
        seq = seq_of_key(key)
        if key.startswith(JOURNAL_PREFIX) and seq is not None:
            if newest is None or seq >= newest:
                base = "the start" if newest is None else f"checkpoint {newest}"
                return (
                    f"opening the store stops here. What {base} and the entries up to here hold is "
                    "whole; what comes after is lost unless the object is restored"
                )
            if any(mark.seq == seq for mark in epochs):
                return (
                    "opening the store is not affected; but a writer that was replaced here may go "
                    "on writing without noticing, so see to it that none is left"
                )
            return (
                f"opening the store is not affected, since checkpoint {newest} comes later; "
                "states before that can no longer be rebuilt"
            )
        if newest is None:
            return ""
        checkpoint = self.checkpoints.get(newest)
        chunks = set[str]() if checkpoint is None else chunk_keys(checkpoint)
        if key != checkpoint_key(newest) and key not in chunks:
            return "opening the store is not affected: there is a newer checkpoint"
        stops = "opening the store needs this"
        if newest in self.replayable:
            return (
                f"{stops}, and stops. Nothing is lost, since what is older leads there too: "
                f"move {checkpoint_key(newest)} out of the way, and the store opens from there"
            )
        return f"{stops}, and nothing else holds that state: restore the object"
