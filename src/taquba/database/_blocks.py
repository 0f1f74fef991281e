"""Which blocks of a database file changed, and which packs have to be written for that."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from taquba.database._packs import Pack

__all__ = ["BLOCK", "Blocks", "Plan", "Scan"]

BLOCK = 1024
"""Bytes. A quarter of a page of SQLite: a row that changes leaves most of its page alone."""
_DIGEST = 16
_UNWRITTEN = 2**32 - 1
_AT_ONCE = 8192
_SMALL_PACKS = 16
"""So many packs that are less than half full may there be, before they are put together."""


@dataclass(slots=True)
class Blocks:
    """The blocks of the last checkpoint: what they are, and in which packs they lie.

    Of several packs that hold a block the last one counts.
    """

    digests: bytes = b""
    """Of each block, one after the other."""
    owners: array[int] = field(default_factory=lambda: array("I"))
    """For each block the index of its pack."""
    packs: tuple[Pack, ...] = ()

    def __len__(self) -> int:
        return len(self.owners)


class Scan:
    """Goes through a file from its beginning to its end, and compares it to `before`."""

    def __init__(self, before: Blocks) -> None:
        self._before = before
        self._file = sha256()
        self._parts: list[bytes] = []
        self._at = 0
        self.changed = array("I")
        """Places of the blocks that are not what they were, ascending."""

    def feed(self, data: bytes) -> None:
        """The next blocks."""
        self._file.update(data)
        view = memoryview(data)
        digests = b"".join(
            [
                sha256(view[start : start + BLOCK]).digest()[:_DIGEST]
                for start in range(0, len(data), BLOCK)
            ]
        )
        start = self._at * _DIGEST
        old = self._before.digests[start : start + len(digests)]
        if old != digests:
            self.changed.extend(
                [
                    self._at + i // _DIGEST
                    for i in range(0, len(digests), _DIGEST)
                    if old[i : i + _DIGEST] != digests[i : i + _DIGEST]
                ]
            )
        self._parts.append(digests)
        self._at += len(digests) // _DIGEST

    def digests(self) -> bytes:
        """Of each block."""
        return b"".join(self._parts)

    def file_digest(self) -> str:
        """Hex sha256 of all that was fed."""
        return self._file.hexdigest()


class Plan:
    """Which packs stay, and which blocks go into new ones.

    Works in parts, with `pause` called between them: the interpreter is not held for long, which
    an event loop beside would have to wait for each time that it lets go of it.
    """

    def __init__(
        self,
        before: Blocks,
        scan: Scan,
        *,
        pack_blocks: int,
        pause: Callable[[], object] = lambda: None,
    ) -> None:
        self._digests = scan.digests()
        self._pack_blocks = pack_blocks
        self._pause = pause
        self._until_pause = _AT_ONCE
        count = len(self._digests) // _DIGEST
        owners = before.owners[:count]
        gone = len(before) - len(owners)
        owners.extend(array("I", [_UNWRITTEN]) * (count - len(owners)))
        for part in self._parts(len(scan.changed)):
            for place in scan.changed[part]:
                owners[place] = _UNWRITTEN
        live: Counter[int] = Counter()
        for part in self._parts(count):
            live.update(owners[part])
        # As much as changed, or was cut off, may be written a second time: so nothing is left
        # behind for long, and no checkpoint has to make up for all that came before it.
        budget = max(len(scan.changed), gone, pack_blocks)
        doomed = _to_rewrite(before.packs, live, budget, pack_blocks)
        self.kept = [i for i in range(len(before.packs)) if i not in doomed]
        """Indexes of the packs before that stay."""
        new_index = {index: i for i, index in enumerate(self.kept)}
        self._owners = array("I")
        self._packs = [before.packs[i] for i in self.kept]
        self.places = array("I")
        """Of all blocks that have to be written."""
        for part in self._parts(count):
            new = [new_index.get(owner, _UNWRITTEN) for owner in owners[part]]
            self._owners.extend(new)
            self.places.extend([i for i, o in enumerate(new, part.start) if o == _UNWRITTEN])

    def _parts(self, count: int) -> Iterator[slice]:
        # What is left of one pass and the start of the next are a part together, so that little
        # work is done without any pause.
        start = 0
        while start < count:
            end = min(count, start + self._until_pause)
            yield slice(start, end)
            self._until_pause -= end - start
            start = end
            if not self._until_pause:
                self._until_pause = _AT_ONCE
                self._pause()

    def groups(self) -> Iterator[array[int]]:
        """The places of the blocks of each new pack."""
        count = -(-len(self.places) // self._pack_blocks)
        for i in range(count):
            start, end = (len(self.places) * j // count for j in (i, i + 1))
            yield self.places[start:end]

    def done(self, new: list[Pack], pause: Callable[[], object] = lambda: None) -> Blocks:
        """The blocks when a pack was written for each group."""
        first = len(self._packs)
        for index, group in enumerate(self.groups(), start=first):
            if index > first:
                pause()
            for place in group:
                self._owners[place] = index
        return Blocks(self._digests, self._owners, (*self._packs, *new))


def _to_rewrite(
    packs: tuple[Pack, ...], live: Counter[int], budget: int, pack_blocks: int
) -> set[int]:
    """Packs that hold little that still counts; no more than `budget` blocks that do."""
    doomed = {i for i in range(len(packs)) if live[i] == 0}
    wasteful = [i for i in range(len(packs)) if live[i] * 2 < packs[i].blocks]
    for i in sorted(wasteful, key=lambda i: live[i] / packs[i].blocks):
        budget -= live[i]
        if budget < 0:
            break
        doomed.add(i)
    small = [i for i in range(len(packs)) if live[i] * 2 < pack_blocks and i not in doomed]
    if len(small) > _SMALL_PACKS:
        doomed.update(small)
    return doomed
