"""What a block whose task group failed raises."""

from __future__ import annotations

import asyncio

__all__ = ["block_failure"]


def block_failure(
    errors: BaseExceptionGroup[BaseException],
    error: BaseException | None,
    expected: BaseException | None,
) -> BaseException | None:
    """What to raise instead of a group; None: what the block itself raised goes on.

    Args:
        errors: What the task group raised.
        error: What the block raised, if it did.
        expected: Another of its type says nothing new beside an error of the block.
    """
    others = [other for other in _leaves(errors, error) if other is not error]
    if error is not None and not isinstance(error, asyncio.CancelledError):
        # What the block raised goes on as it is, unless there is more to say.
        others = [other for other in others if not isinstance(other, type(expected))]
        return errors if others else None
    if all(type(other) is type(others[0]) for other in others):
        return others[0]
    return errors


def _leaves(
    group: BaseExceptionGroup[BaseException], whole: BaseException | None
) -> list[BaseException]:
    """The errors in a group and in the groups in it; the group `whole` counts as one error."""
    leaves: list[BaseException] = []
    for error in group.exceptions:
        if error is whole or not isinstance(error, BaseExceptionGroup):
            leaves.append(error)
        else:
            leaves += _leaves(error, whole)  # pyright: ignore[reportUnknownArgumentType]
    return leaves
