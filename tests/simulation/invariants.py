"""What must hold in every world. Each predicate gives a complaint, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from taquba.errors import Fenced, TaqubaError
from taquba.journal import Kind
from taquba.journal._entry import decode_entry
from taquba.objectstore import MemoryStore

if TYPE_CHECKING:
    from taquba.journal import Journal
    from tests.simulation.world import World


def lost(acknowledged: Iterable[int], log: Sequence[int]) -> str:
    """Whatever was acknowledged is in the log."""
    missing = sorted(set(acknowledged) - set(log))
    return f"acknowledged, and lost: {missing}" if missing else ""


def doubled(log: Sequence[int]) -> str:
    """Nothing is in the log twice."""
    seen: set[int] = set()
    twice = [value for value in log if value in seen or seen.add(value)]
    return f"more than once in the log: {twice}" if twice else ""


def invented(log: Sequence[int], appended: dict[int, list[int]]) -> str:
    """Only what was appended is in the log."""
    known = {value for values in appended.values() for value in values}
    strange = sorted(set(log) - known)
    return f"in the log, and never appended: {strange}" if strange else ""


def order_broken(log: Sequence[int], appended: dict[int, list[int]]) -> str:
    """Of each writer, the log holds the first so-and-so many numbers, in their order.

    So there is no hole: no number is kept whose predecessor is lost.
    """
    place = {value: writer for writer, values in appended.items() for value in values}
    kept: dict[int, list[int]] = {}
    for value in log:
        kept.setdefault(place.get(value, -1), []).append(value)
    for writer, values in kept.items():
        if values != appended.get(writer, [])[: len(values)]:
            return f"of writer {writer} the log keeps {values}, appended were {appended[writer]}"
    return ""


def writers_mixed(log: Sequence[int], appended: dict[int, list[int]]) -> str:
    """A writer's numbers stand together: after a takeover nothing of the older one follows."""
    place = {value: writer for writer, values in appended.items() for value in values}
    runs = [place.get(value, -1) for value in log]
    changes = [b for a, b in zip([None, *runs], runs, strict=False) if a != b]
    return f"writers alternate in the log: {changes}" if len(changes) != len(set(changes)) else ""


def acknowledged_early(
    writer: bytes, seqs: Iterable[int], landed: dict[int, bytes], value: int
) -> str:
    """When a number is acknowledged, its entry and all of that writer's before it have landed."""
    missing = [seq for seq in seqs if landed.get(seq) != writer]
    return f"{value} was acknowledged, and these entries never landed: {missing}" if missing else ""


def acknowledged_after_failure(value: int, doomed: set[int]) -> str:
    """What a writer had not acknowledged when it was fenced, it never acknowledges."""
    return f"{value} was acknowledged after the journal stopped" if value in doomed else ""


def wrong_epoch(epoch: int, author: int, epoch_before: int, author_before: int) -> str:
    """Epochs only grow along the log, and each has one author."""
    if epoch < epoch_before:
        return f"epoch {epoch} was applied after epoch {epoch_before}"
    if epoch == epoch_before and author_before not in (-1, author):
        return f"epoch {epoch} has entries of writers {author_before} and {author}"
    return ""


def epoch_owned_twice(epoch: int, writer: int, owners: dict[int, int]) -> str:
    """No two writers open with the same epoch."""
    if epoch in owners:
        return f"writers {owners[epoch]} and {writer} both own epoch {epoch}"
    return ""


def fenced_without_rival(error: TaqubaError, epoch: int, store: MemoryStore) -> str:
    """A writer stops as fenced only when a newer epoch is in the log."""
    if not isinstance(error, Fenced):
        return ""
    for key, data in store._objects.items():
        if key.startswith("journal/"):
            entry = decode_entry(key, data)
            if entry.kind is Kind.EPOCH and entry.epoch > epoch:
                return ""
    return f"epoch {epoch} stopped with {error!r}, and there is no newer one"


def closed_with_something_left(journal: Journal, failed: bool) -> str:
    """A close that returns has acknowledged everything, unless the journal failed before."""
    if failed or journal.failure is not None:
        return ""
    if journal.last_ticket > journal.acknowledged_ticket:
        return "closed, with commits outstanding"
    return ""


def judge(world: World) -> list[str]:
    """Every complaint about a world that is over."""
    log = world.final
    complaints = [
        lost((value for _, value in world.acknowledged), log),
        doubled(log),
        invented(log, world.appended),
        order_broken(log, world.appended),
        writers_mixed(log, world.appended),
    ]
    return [complaint for complaint in complaints if complaint]
