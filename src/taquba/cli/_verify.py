"""``taquba verify``."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from taquba.cli._arguments import Usage, opened, scheme, scratch_config
from taquba.cli._prices import Prices, prices_for, removal
from taquba.cli._text import amount, dollars, json_text, paragraph, size, table, time
from taquba.database import Finding, Orphans, Progress, VerifyReport
from taquba.queue import verify_queue

if TYPE_CHECKING:
    from taquba.clock import Clock

__all__ = ["verify_command"]

_KEEP_WHILE_DAMAGED = (
    "While there is damage, delete none of these: a damaged object may need them once it is "
    "restored."
)

_PAUSE = 0.1
"""Seconds between two updates of the line that tells how far it is."""


async def verify_command(options: argparse.Namespace, clock: Clock) -> int:
    """Verify, print, and give the exit status."""
    prices = prices_for(scheme(options.url), options.price)
    config = scratch_config(options)
    store = await opened(options, clock)
    try:
        with _Line(clock) as line:
            report = await verify_queue(
                store,
                clock=clock,
                config=config,
                progress=line.show,
                read_payloads=options.payloads,
            )
    finally:
        await store.close()
    if report.empty:
        raise Usage(f"{options.url} holds no taquba store: neither a journal nor a checkpoint")
    if options.json:
        print(json_text(_as_json(options.url, report, prices)))
    else:
        print(_as_text(options.url, report, prices))
    return 0 if report.clean else 1


class _Line:
    """One line on the terminal that tells how far it is."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = 0.0
        self._width = 0

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._write("")

    def show(self, progress: Progress) -> None:
        """Tell, if there is a terminal, and not too often."""
        now = self._clock.monotonic()
        if now < self._next or not sys.stderr.isatty():
            return
        self._next = now + _PAUSE
        text = progress.stage
        if progress.total:
            text += f"  {progress.done:,} of {progress.total:,}"
        self._write(text[:79])

    def _write(self, text: str) -> None:
        if text or self._width:
            sys.stderr.write(f"\r{text.ljust(self._width)}" + ("" if text else "\r"))
            sys.stderr.flush()
        self._width = len(text)


def _as_text(url: str, report: VerifyReport, prices: Prices) -> str:
    position = report.position
    rows = [
        ["store", url],
        ["journal", _journal(report)],
        ["last commit", time(report.last_commit_ms)],
        ["epoch", f"{position.epoch}, window {position.window}"],
        ["checkpoints", _checkpoints(report)],
        [
            "stored",
            f"{amount(report.survey.total.count, 'object')}, {size(report.survey.total.bytes)}",
        ],
    ]
    parts = [table(rows)]
    if report.survey.orphans:
        parts.append(_orphans(report, prices))
    parts.append(_verdict(report))
    return "\n\n".join(parts)


def _journal(report: VerifyReport) -> str:
    text = (
        f"{amount(report.entries, 'entry', 'entries')} from {report.first} to "
        f"{report.position.seq - 1}, {size(report.bytes)}; {report.replayed:,} replayed"
        if report.entries
        else "no entries since the oldest checkpoint"
    )
    if not report.settled and report.clean:
        text += "; it was growing meanwhile"
    if report.overtaken:
        text += f"; collection overtook the reader {amount(report.overtaken, 'time')}"
    return text


def _checkpoints(report: VerifyReport) -> str:
    if not report.checkpoints:
        return "none yet"
    return ", ".join(f"{checkpoint.seq} {checkpoint.outcome}" for checkpoint in report.checkpoints)


def _orphans(report: VerifyReport, prices: Prices) -> str:
    rows = [
        ["not needed", "objects", "size", "to remove"],
        *(
            [one.kind, f"{one.count:,}", size(one.bytes), _cost(report, one, prices)]
            for one in report.survey.orphans
        ),
    ]
    notes = [
        paragraph(f"{orphans.kind}: {orphans.note}", indent="  ")
        for orphans in report.survey.orphans
    ]
    if not report.clean:
        notes.append(paragraph(_KEEP_WHILE_DAMAGED, indent="  "))
    return "\n".join([table(rows, right=(1, 2)), *notes])


def _cost(report: VerifyReport, orphans: Orphans, prices: Prices) -> str:
    requests = removal(report.survey, orphans.count)
    return (
        f"{amount(int(requests.list), 'list')} and {amount(int(requests.delete), 'delete')}, "
        f"{dollars(requests.cost(prices))}"
    )


def _verdict(report: VerifyReport) -> str:
    if report.clean:
        return "clean: every digest, every link of the chain and every checkpoint is right"
    return "\n".join(
        [
            f"DAMAGED: {amount(len(report.findings), 'finding')}",
            *(_finding(finding) for finding in report.findings),
        ]
    )


def _finding(finding: Finding) -> str:
    lines = [f"\n  {finding.key or 'the store'}", paragraph(finding.reason, indent="    ")]
    if finding.meaning:
        lines.append(paragraph(f"{finding.meaning}.", indent="    "))
    return "\n".join(lines)


def _as_json(url: str, report: VerifyReport, prices: Prices) -> dict[str, Any]:
    position = report.position
    survey = dataclasses.asdict(report.survey)
    for orphans in survey["orphans"]:
        requests = removal(report.survey, orphans["count"])
        orphans["removal"] = {
            **dataclasses.asdict(requests),
            "dollars": requests.cost(prices),
        }
    return {
        "url": url,
        "clean": report.clean,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        "first": report.first,
        "tail": position.seq,
        "settled": report.settled,
        "epoch": position.epoch,
        "window": position.window,
        "digest": position.digest.hex(),
        "entries": report.entries,
        "bytes": report.bytes,
        "replayed": report.replayed,
        "last_commit_ms": report.last_commit_ms,
        "overtaken": report.overtaken,
        "checkpoints": [dataclasses.asdict(checkpoint) for checkpoint in report.checkpoints],
        "stored": {**survey, "total": dataclasses.asdict(report.survey.total)},
        "prices": dataclasses.asdict(prices),
    }
