"""``taquba info``."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from taquba.cli._arguments import Usage, opened, scheme, scratch_config
from taquba.cli._gather import Info, gather
from taquba.cli._prices import Prices, prices_for
from taquba.cli._text import ago, amount, dollars, json_text, size, table, time

if TYPE_CHECKING:
    from taquba.clock import Clock

__all__ = ["info_command"]

_SHORTEST = 60.0
"""Seconds of entries from which the cost of a month is told."""


async def info_command(options: argparse.Namespace, clock: Clock) -> int:
    """Look, print, and give the exit status."""
    prices = prices_for(scheme(options.url), options.price)
    config = scratch_config(options)
    store = await opened(options, clock)
    try:
        info = await gather(
            store,
            clock=clock,
            config=config,
            quick=options.quick,
            full=options.full,
            epochs=options.epochs,
        )
    finally:
        await store.close()
    if info is None:
        raise Usage(f"{options.url} holds no taquba store: neither a journal nor a checkpoint")
    now_ms = clock.now_ms()
    if options.json:
        print(json_text(_as_json(options.url, info, prices, now_ms)))
    else:
        print(_as_text(options.url, info, prices, now_ms))
    return 1 if info.damage else 0


def _as_text(url: str, info: Info, prices: Prices, now_ms: int) -> str:
    parts = [
        table(_head(url, info, now_ms)),
        table(_objects(info), right=(1, 2)),
    ]
    if info.damage:
        parts.append(f"The database cannot be loaded: {info.damage}\n'taquba verify' tells more.")
    if info.tables:
        rows = [["table", "rows"], *([item.name, f"{item.rows:,}"] for item in info.tables)]
        parts.append(table(rows, right=(1,)))
    if info.queues:
        states = list(info.queues[0].jobs)
        parts.append(
            table(
                [
                    ["queue", *states],
                    *(
                        [queue.name, *(f"{queue.jobs[state]:,}" for state in states)]
                        for queue in info.queues
                    ),
                ],
                right=range(1, 1 + len(states)),
            )
        )
    if info.epochs:
        parts.append(_epochs(info))
    parts.append(_requests(info, prices))
    return "\n\n".join(parts)


def _head(url: str, info: Info, now_ms: int) -> list[list[str]]:
    since = info.survey.entries_since
    if info.last_commit_ms is None:
        last = "unknown"
    else:
        last = f"{time(info.last_commit_ms)}, {ago(now_ms - info.last_commit_ms)}"
    if info.loaded:
        database = size(info.size)
    elif info.size:
        database = (
            f"{size(info.size)} at the newest checkpoint; not loaded, which would fetch "
            f"{size(info.to_load)} (--full)"
        )
    else:
        database = "not loaded"
    checkpoint = "none yet"
    if info.survey.stored_checkpoints:
        newest = info.survey.stored_checkpoints[-1]
        checkpoint = f"{newest.seq}, {ago(now_ms - newest.created_at_ms)}"
    return [
        ["store", url],
        ["last commit", last],
        ["epoch", f"{info.epoch}, writer {info.last_writer or 'unknown'}"],
        ["checkpoint", checkpoint],
        ["since then", f"{amount(since.count, 'entry', 'entries')}, {size(since.bytes)}"],
        ["database", database],
    ]


def _objects(info: Info) -> list[list[str]]:
    survey = info.survey
    groups = [
        ("journal entries", survey.entries),
        ("epoch entries", survey.epoch_entries),
        ("checkpoints", survey.checkpoints),
        ("chunks", survey.chunks),
        ("payloads", survey.others),
        *((orphans.kind, orphans) for orphans in survey.orphans),
        ("total", survey.total),
    ]
    return [
        ["stored", "objects", "size"],
        *([name, f"{group.count:,}", size(group.bytes)] for name, group in groups if group.count),
    ]


def _epochs(info: Info) -> str:
    rows = [
        ["epoch", "since", "writer", "entry", "goes on at"],
        *(
            [
                str(epoch.epoch),
                time(epoch.began_at_ms) if epoch.began_at_ms is not None else "unreadable",
                epoch.writer or "unreadable",
                str(epoch.seq),
                str(epoch.resume_at),
            ]
            for epoch in info.epochs
        ),
    ]
    text = table(rows, right=(0, 3, 4))
    older = len(info.position.epochs) - len(info.epochs)
    if older:
        text += f"\n({older:,} older)"
    newer = info.epoch - info.position.epoch
    if newer:
        text += f"\n({newer:,} newer than the newest checkpoint: --full lists them)"
    return text


def _requests(info: Info, prices: Prices) -> str:
    rate = info.rate
    if not rate.seconds:
        return "requests: too little was written to tell a rate"
    observed = (
        f"requests: {amount(rate.entries, 'entry', 'entries')} in {_span(rate.seconds)} "
        f"({rate.entries / rate.seconds:.3g} a second)"
    )
    if rate.seconds < _SHORTEST:
        return f"{observed}: too short a time to tell what a month costs"
    month = rate.per_month()
    text = (
        f"{observed}\na month at this rate: {month.put:,.0f} PUT, {month.list:,.0f} LIST, "
        f"{month.delete:,.0f} DELETE"
    )
    if prices == Prices():
        return text
    return (
        f"{text}; {dollars(month.cost(prices))} at $ {prices.put:g}, {prices.list:g}, "
        f"{prices.delete:g} per 1,000"
    )


def _span(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} seconds"


def _as_json(url: str, info: Info, prices: Prices, now_ms: int) -> dict[str, Any]:
    month = info.rate.per_month()
    age = None if info.last_commit_ms is None else (now_ms - info.last_commit_ms) / 1000
    return {
        "url": url,
        "epoch": info.epoch,
        "writer": info.last_writer,
        "last_commit_ms": info.last_commit_ms,
        "last_commit_age_seconds": age,
        "seq": info.position.seq,
        "stored": {
            **dataclasses.asdict(info.survey),
            "total": dataclasses.asdict(info.survey.total),
        },
        "database": {
            "loaded": info.loaded,
            "damage": info.damage or None,
            "bytes": info.size,
            "tables": {item.name: item.rows for item in info.tables} if info.loaded else None,
        },
        "queues": {queue.name: queue.jobs for queue in info.queues} if info.loaded else None,
        "epochs": [dataclasses.asdict(epoch) for epoch in info.epochs],
        "rate": {
            **dataclasses.asdict(info.rate),
            "per_month": dataclasses.asdict(month),
            "dollars_per_month": month.cost(prices) if info.rate.seconds >= _SHORTEST else None,
        },
        "prices": dataclasses.asdict(prices),
    }
