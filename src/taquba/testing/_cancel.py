"""Cancellation of what a test made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taquba.queue import Delivery
    from taquba.workflow import BlockingStep, Step

__all__ = ["request_cancel"]


def request_cancel(target: Delivery | Step | BlockingStep) -> None:
    """Fire the `cancel_token` of a detached step or delivery, as a request to cancel would.

    Example:
        >>> from taquba.queue import Delivery
        >>> delivery = Delivery.detached()
        >>> request_cancel(delivery)
        >>> delivery.cancel_token.is_cancelled
        True
    """
    target._claim._lease.request_cancel()
