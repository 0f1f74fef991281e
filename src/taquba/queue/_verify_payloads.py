"""Verifying a whole store: the database, and the objects that hold payloads of its jobs."""

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
from taquba.queue._payload_objects import PAYLOAD_PREFIX, PayloadReader, PayloadRef
from taquba.queue._verify import QUEUE_CHECKS

if TYPE_CHECKING:
    from taquba.clock import Clock
    from taquba.objectstore import ObjectStore

__all__ = ["verify_queue"]

_UNNAMED = "unnamed payloads"
_NOTE = (
    "of no job: of an enqueue that is under way, of a job that has just ended or is only in the "
    "history, or left by a process that died; collection deletes them"
)
_MEANING = "the job cannot be delivered: a worker that claims it gives it up"
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

    Those that the jobs at the tail name must be there, and as long as the jobs say. In the
    report, `survey.others` are those, and the rest is among the orphans.

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
        findings = await _of_jobs_that_are_there(store, findings, clock, config)
    if read_payloads:
        findings += await audit.read({job_id for job_id, _ in findings})
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
        self._refs: dict[str, str] = {}
        self.named = Group()
        self.unnamed = Orphans(kind=_UNNAMED, note=_NOTE)

    def note(self, execute: Execute) -> Iterator[str]:
        """A check for `verify`: the last state that it sees is the one that counts."""
        self._refs = {}
        for job_id, text in _references(execute):
            try:
                PayloadRef.parse(text)
            except CorruptStore as error:
                yield f"job {job_id!r}: {error}"
            else:
                self._refs[job_id] = text

    async def examine(self) -> list[tuple[str, Finding]]:
        """List the objects; what is missing or too short, by job."""
        sizes = {info.key: info.size async for info in self._store.list(PAYLOAD_PREFIX)}
        findings: list[tuple[str, Finding]] = []
        count = size = 0
        for job_id, text in self._refs.items():
            for key, expected in PayloadRef.parse(text).objects():
                found = sizes.pop(key, None)
                if found is None:
                    reason = f"it is missing, and job {job_id!r} needs it"
                    findings.append((job_id, Finding(key=key, reason=reason, meaning=_MEANING)))
                    continue
                count, size = count + 1, size + found
                if found != expected:
                    reason = f"it has {found:,} bytes, and job {job_id!r} says {expected:,}"
                    findings.append((job_id, Finding(key=key, reason=reason, meaning=_MEANING)))
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
        """Read the payloads of all jobs but those; what is damaged, by job."""
        findings: list[tuple[str, Finding]] = []
        reader = PayloadReader(self._store)
        for job_id, text in self._refs.items():
            if job_id in known:
                continue
            try:
                async for _ in reader.stream(PayloadRef.parse(text)):
                    pass
            except PayloadMissing:
                continue  # it was there a moment ago: its job has ended
            except CorruptStore as error:
                finding = Finding(key=error.key or "", reason=str(error), meaning=_MEANING)
                findings.append((job_id, finding))
        return findings


def _references(execute: Execute) -> list[tuple[str, str]]:
    has_jobs = execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'index' AND name = 'jobs_stored'"
    ).fetchone()
    if not has_jobs:
        return []  # there is no queue, or one of an older version, which had no such payloads
    return execute(
        "SELECT id, payload_ref FROM jobs WHERE payload_ref IS NOT NULL ORDER BY payload_ref"
    ).fetchall()


async def _of_jobs_that_are_there(
    store: ObjectStore,
    findings: list[tuple[str, Finding]],
    clock: Clock,
    config: DatabaseConfig | None,
) -> list[tuple[str, Finding]]:
    """Those findings whose jobs have not ended meanwhile, and their objects with them."""
    try:
        replica = await Replica.open(store, clock=clock, config=config)
    except CorruptStore:
        return findings
    try:
        there = {
            job_id
            for job_id, _ in findings
            if replica.rows("SELECT 1 FROM jobs WHERE id = ?", (job_id,))
        }
    finally:
        await replica.close()
    return [(job_id, finding) for job_id, finding in findings if job_id in there]
