"""How a plan for a checkpoint lets others go on meanwhile."""

from __future__ import annotations

from taquba.database._blocks import _AT_ONCE, BLOCK, Blocks, Plan, Scan


def pauses_for(blocks: int) -> int:
    """How often others could go on while a plan for so many new blocks was made."""
    pauses: list[None] = []
    scan = Scan(before := Blocks())
    scan.feed(bytes(blocks * BLOCK))
    plan = Plan(before, scan, pack_blocks=64, pause=lambda: pauses.append(None))
    assert list(plan.places) == list(range(blocks))
    return len(pauses)


def test_a_small_plan_is_made_without_a_pause() -> None:
    assert pauses_for(0) == 0
    assert pauses_for(_AT_ONCE // 3 - 1) == 0


def test_a_large_plan_pauses_after_so_many_blocks_of_whichever_pass() -> None:
    blocks = _AT_ONCE + 1000
    assert pauses_for(blocks) == 3 * blocks // _AT_ONCE == 3
    assert pauses_for(_AT_ONCE // 3 + 1) == 1
