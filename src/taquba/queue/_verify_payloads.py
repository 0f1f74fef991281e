"""Verifying a whole store: the database, and the objects that hold payloads and large values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from taquba.database import (
    DatabaseConfig,
    Execute,
    Finding,
    Group,
    Orphans,
    Progress,
    Replica,
    VerifyReport,
    verify,
)
from taquba.errors import CorruptStore, PayloadMissing
from taquba.queue._payload_holders import references
from taquba.queue._payload_objects import PAYLOAD_PREFIX, PayloadReader, PayloadRef
from taquba.queue._verify import QUEUE_CHECKS

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.objectstore import ObjectStore

__all__ = ["verify_queue"]

_UNNAMED = "unnamed payloads"
_NOTE = (
    "of no job, memo or result: of one that is being written, has just ended or is only in the "
    "history, or left by a process that died; collection deletes them"
)
_MEANING = "the job cannot be delivered: a worker that claims it gives it up"
_MEANING_ABOVE = "whoever reads the value is told so; what a memo has lost is computed again"
_EXAMPLES = 3


async def verify_queue(
    store: ObjectStore,
    *,
    clock: Clock,
    config: DatabaseConfig | None = None,
    progress: Callable[[Progress], None] | None = None,
    read_payloads: bool = False,
) -> VerifyReport:
    """`taquba.database.verify` with the checks of the queue, and a look at the payload objects.

    Those that rows at the tail name must be there, and as long as the rows say. In the report,
    `survey.others` are those, and the rest is among the orphans.

    Args:
        store: The store; read-only credentials are enough.
        clock: Time.
        config: Where scratch files go, and what may be in memory.
        progress: Told how far it is.
        read_payloads: Also read them, and check their digests.

    Raises:
        StoreError: The store failed, or forbids reading or listing.
        IncompatibleStore: A newer taquba wrote it.
    """
    audit = _Audit(store)
    report = await verify(
        store,
        checks=(*QUEUE_CHECKS, audit.note),
        config=config,
        progress=progress,
        other_prefixes=(PAYLOAD_PREFIX,),
    )
    if progress is not None:
        progress(Progress(stage="looking at the payloads"))
    findings = await audit.examine()
    if findings:
        findings = await _still_named(store, findings, clock, config)
    if read_payloads:
        findings += await audit.read({ref for ref, _ in findings})
    named, unnamed = audit.named, audit.unnamed
    orphans = report.survey.orphans
    if unnamed.count:
        orphans = (*orphans, unnamed)
    return replace(
        report,
        findings=(*report.findings, *(finding for _, finding in findings)),
        survey=replace(report.survey, others=named, orphans=orphans),
    )


class _Audit:
    """What the newest state says of payload objects, and what there is."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._refs: dict[str, str] = {}  # with what names them, in words
        self.named = Group()
        self.unnamed = Orphans(kind=_UNNAMED, note=_NOTE)

    def note(self, execute: Execute) -> Iterator[str]:
        """A check for `verify`: the last state that it sees is the one that counts."""
        self._refs = {}
        for ref, owner in references(lambda sql, parameters: execute(sql, parameters).fetchall()):
            try:
                PayloadRef.parse(ref)
            except CorruptStore as error:
                yield f"{owner}: {error}"
            else:
                self._refs[ref] = owner

    async def examine(self) -> list[tuple[str, Finding]]:
        """List the objects; what is missing or too short, by reference."""
        sizes = {info.key: info.size async for info in self._store.list(PAYLOAD_PREFIX)}
        findings: list[tuple[str, Finding]] = []
        count = size = 0
        for ref, owner in self._refs.items():
            for key, expected in PayloadRef.parse(ref).objects():
                found = sizes.pop(key, None)
                if found is None:
                    reason = f"it is missing, and {owner} needs it"
                    findings.append((ref, _finding(key, reason, owner)))
                    continue
                count, size = count + 1, size + found
                if found != expected:
                    reason = f"it has {found:,} bytes, and {owner} says {expected:,}"
                    findings.append((ref, _finding(key, reason, owner)))
        self.named = Group(count=count, bytes=size)
        self.unnamed = Orphans(
            kind=_UNNAMED,
            note=_NOTE,
            count=len(sizes),
            bytes=sum(sizes.values()),
            examples=tuple(sorted(sizes)[:_EXAMPLES]),
        )
        return findings

    async def read(self, known: set[str]) -> list[tuple[str, Finding]]:
        """Read all payloads but those; what is damaged, by reference."""
        findings: list[tuple[str, Finding]] = []
        reader = PayloadReader(self._store)
        for ref, owner in self._refs.items():
            if ref in known:
                continue
            try:
                async for _ in reader.stream(PayloadRef.parse(ref)):
                    pass
            except PayloadMissing:
                continue  # it was there a moment ago: what named it is gone
            except CorruptStore as error:
                findings.append((ref, _finding(error.key or "", str(error), owner)))
        return findings


def _finding(key: str, reason: str, owner: str) -> Finding:
    meaning = _MEANING if owner.startswith("job ") else _MEANING_ABOVE
    return Finding(key=key, reason=reason, meaning=meaning)


async def _still_named(
    store: ObjectStore,
    findings: list[tuple[str, Finding]],
    clock: Clock,
    config: DatabaseConfig | None,
) -> list[tuple[str, Finding]]:
    """Those findings whose references are not gone meanwhile, and their objects with them."""
    try:
        replica = await Replica.open(store, clock=clock, config=config)
    except CorruptStore:
        return findings
    try:
        now = {ref for ref, _ in references(replica.rows)}
    finally:
        await replica.close()
    return [(ref, finding) for ref, finding in findings if ref in now]
