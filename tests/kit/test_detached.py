"""Handlers and steps that are called without a queue."""

from __future__ import annotations

from typing import Any

import pytest

from taquba import Delivery
from taquba.errors import InvalidArgument, InvalidType, ValueTooLarge
from taquba.testing import request_cancel

pytestmark = pytest.mark.anyio


async def test_a_detached_delivery() -> None:
    delivery = Delivery.detached(b"x", headers={"to": "ann"}, attempt=3)
    assert (delivery.id, delivery.queue) == ("detached", "detached")
    assert (delivery.payload, delivery.headers) == (b"x", {"to": "ann"})
    assert (delivery.attempt, delivery.max_attempts, delivery.is_last_attempt) == (3, 3, True)
    assert delivery.is_live and not delivery.should_stop
    delivery.ensure_at_least(1e9)
    assert delivery.remaining == float("inf")


async def test_a_detached_delivery_has_a_token_of_its_own() -> None:
    one, other = Delivery.detached(), Delivery.detached()
    request_cancel(one)
    await one.cancel_token.wait()
    assert one.should_stop
    one.ensure_at_least(5)  # what is detached never fails
    assert not other.cancel_token.is_cancelled


async def test_effects_of_a_detached_delivery() -> None:
    """EFF-13: they are checked as they are staged, can be looked at, and are never sealed."""
    delivery = Delivery.detached()
    delivery.effects.enqueue("mail", b"1").put("k", b"v")
    delivery.effects.delete("other")
    with pytest.raises(ValueTooLarge):
        delivery.effects.put("k", bytes(300_000))
    assert [job.queue for job in delivery.effects.jobs] == ["mail"]
    assert delivery.effects.puts == {b"k": b"v"}
    assert list(delivery.effects.deletes) == [b"other"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"payload": "text"}, InvalidType, "payload"),
        ({"attempt": 0}, InvalidArgument, "attempt"),
        ({"attempt": 4}, InvalidArgument, "attempt is 4"),
        ({"max_attempts": 0}, InvalidArgument, "max_attempts"),
        ({"headers": {"a": 1}}, InvalidType, "header"),
        ({"queue": ""}, InvalidArgument, "queue"),
        ({"job_id": "ä/"}, InvalidArgument, "job"),
    ],
)
def test_what_no_delivery_can_be(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Delivery.detached(**options)
