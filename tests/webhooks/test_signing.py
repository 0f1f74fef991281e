"""Signatures of webhooks: what is right, and everything that is not."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from taquba import ManualClock
from taquba.errors import InvalidArgument, InvalidSignature, InvalidType
from taquba.webhooks import Secret, Verified, sign, verify

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER = b"another secret, of 31 bytes....."
BODY = "Grüße, 世界 \x00".encode()


def signed(
    clock: ManualClock, secret: Any = SECRET, body: bytes = BODY, message_id: str = "msg_1"
) -> dict[str, str]:
    stamp = clock.now_ms() // 1000
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(stamp),
        "webhook-signature": sign(message_id, stamp, body, secret),
    }


def test_the_example_of_the_specification() -> None:
    """Of Standard Webhooks' own libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    signature = sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', secret)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    raw = base64.b64decode(secret.removeprefix("whsec_"))
    assert signature == sign(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', raw
    )


@pytest.mark.parametrize("body", [b"", b"plain", BODY, bytes(range(256)) * 1000], ids=len)
@pytest.mark.parametrize("kind", [dict, httpx.Headers, lambda h: {k.upper(): h[k] for k in h}])
def test_what_was_signed_verifies(body: bytes, kind: Any) -> None:
    clock = ManualClock()
    headers = kind(signed(clock, body=body))
    at = datetime.fromtimestamp(clock.now_ms() // 1000, UTC)
    assert verify(headers, body, SECRET, clock=clock) == Verified("msg_1", at)


def test_the_system_s_clock_is_the_default() -> None:
    from taquba import SystemClock

    stamp = SystemClock().now_ms() // 1000
    headers = {
        "webhook-id": "m",
        "webhook-timestamp": str(stamp),
        "webhook-signature": sign("m", stamp, b"", SECRET),
    }
    assert verify(headers, b"", SECRET).id == "m"
    with pytest.raises(InvalidSignature):
        verify(headers, b"", SECRET, clock=ManualClock())


def test_another_secret() -> None:
    clock = ManualClock()
    with pytest.raises(InvalidSignature, match="secret is another"):
        verify(signed(clock), BODY, OTHER, clock=clock)


def test_secrets_can_be_replaced_on_either_side() -> None:
    clock = ManualClock()
    both = signed(clock, [SECRET, OTHER])
    assert both["webhook-signature"].count("v1,") == 2
    verify(both, BODY, SECRET, clock=clock)
    verify(both, BODY, OTHER, clock=clock)
    verify(signed(clock, OTHER), BODY, [SECRET, OTHER], clock=clock)
    verify(signed(clock, SECRET), BODY, [SECRET, OTHER], clock=clock)
    # Signatures of other versions are left to those who know them.
    both["webhook-signature"] = "v2,AAAA v1a,BBBB " + both["webhook-signature"]
    verify(both, BODY, SECRET, clock=clock)


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "msg_2"},
        {"webhook-id": "msg_é"},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1,é"},
        {"webhook-signature": "v1,\udcff"},
        {"webhook-signature": "garbage"},
        {"webhook-signature": "v2,{right}"},
        {"webhook-signature": "{right}="},
        {"webhook-signature": " ".join(["v1,AAAA"] * 1000)},
    ],
    ids=str,
)
def test_headers_that_were_changed(change: dict[str, str]) -> None:
    clock = ManualClock()
    headers = signed(clock)
    right = headers["webhook-signature"].removeprefix("v1,")
    headers |= {name: text.replace("{right}", right) for name, text in change.items()}
    with pytest.raises(InvalidSignature):
        verify(headers, BODY, SECRET, clock=clock)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_headers_that_are_missing(name: str) -> None:
    clock = ManualClock()
    headers = signed(clock)
    for wrong in ({**headers, name: ""}, {k: v for k, v in headers.items() if k != name}):
        with pytest.raises(InvalidSignature, match=name):
            verify(wrong, BODY, SECRET, clock=clock)


@pytest.mark.parametrize("stamp", ["", "now", "-5", "1.5", "１７", "9" * 40, "0x10", "1e3", " 17"])
def test_a_timestamp_that_is_none(stamp: str) -> None:
    clock = ManualClock()
    with pytest.raises(InvalidSignature):
        verify({**signed(clock), "webhook-timestamp": stamp}, BODY, SECRET, clock=clock)


def test_a_timestamp_that_was_changed_is_not_what_was_signed() -> None:
    """An old request does not become a new one by another timestamp."""
    clock = ManualClock()
    headers = signed(clock)
    stamp = int(headers["webhook-timestamp"])
    with pytest.raises(InvalidSignature, match="no signature is right"):
        verify({**headers, "webhook-timestamp": str(stamp + 1)}, BODY, SECRET, clock=clock)
    with pytest.raises(InvalidSignature, match="no signature is right"):
        verify({**headers, "webhook-timestamp": f"0{stamp}"}, BODY, SECRET, clock=clock)


@pytest.mark.parametrize("position", [0, len(BODY) // 2, len(BODY) - 1])
def test_a_body_that_was_changed(position: int) -> None:
    clock = ManualClock()
    changed = bytearray(BODY)
    changed[position] ^= 1
    for body in (bytes(changed), BODY + b"\n", BODY[:-1], b""):
        with pytest.raises(InvalidSignature):
            verify(signed(clock), body, SECRET, clock=clock)


async def _move(clock: ManualClock, seconds: float) -> None:
    await clock.advance(seconds)


@pytest.mark.anyio
async def test_old_requests_and_replays() -> None:
    """A replay is right as long as it is not old; its id says that it is one."""
    clock = ManualClock()
    headers = signed(clock)
    seen = {verify(headers, BODY, SECRET, clock=clock).id}
    await clock.advance(timedelta(minutes=5))
    assert verify(headers, BODY, SECRET, clock=clock).id in seen
    await clock.advance(1)
    with pytest.raises(InvalidSignature, match="old"):
        verify(headers, BODY, SECRET, clock=clock)
    assert verify(headers, BODY, SECRET, tolerance=timedelta(hours=1), clock=clock).id in seen
    with pytest.raises(InvalidSignature, match="ahead"):
        verify(headers, BODY, SECRET, clock=ManualClock(start=datetime(2000, 1, 1, tzinfo=UTC)))


@pytest.mark.parametrize(
    "secret",
    ["", "whsec_", "whsec_%%%", "plain text without prefix", b"", b"x" * 23, b"x" * 65, [], [b""]],
    ids=str,
)
def test_secrets_that_are_none(secret: Any) -> None:
    for call in (
        lambda: sign("m", 0, b"", secret),
        lambda: verify({}, b"", secret),
    ):
        with pytest.raises(InvalidArgument):
            call()


def test_secrets_at_the_edge_of_their_length() -> None:
    for key in (b"x" * 24, b"x" * 64):
        assert sign("m", 0, b"", key) == sign(
            "m", 0, b"", "whsec_" + base64.b64encode(key).decode()
        )


def test_messages_about_secrets_do_not_tell_them() -> None:
    for secret in ("hunter2hunter2", "whsec_hunter2!!", "whsec_aHVudGVyMg==", b"hunter2"):
        with pytest.raises(InvalidArgument) as caught:
            sign("m", 0, b"", secret)
        assert "hunter2" not in str(caught.value) and "aHVud" not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: verify({}, "text", SECRET),
        lambda: verify({}, b"", 5),
        lambda: verify({}, b"", [5]),
        lambda: verify({}, b"", SECRET, tolerance="5"),
    ],
)
def test_arguments_of_other_types(call: Any) -> None:
    with pytest.raises(InvalidType):
        call()


def test_the_alias_is_for_annotations() -> None:
    secret: Secret = SECRET
    assert sign("m", 1, b"", secret)
