"""Signing what is sent, and verifying what was received.

The scheme is that of Standard Webhooks (https://www.standardwebhooks.com, specification of
2023): the HMAC-SHA256 of ``id.timestamp.body``, in base64 behind ``v1,``, with the headers
``webhook-id``, ``webhook-timestamp`` (seconds since 1970) and ``webhook-signature``, which
may have several signatures with spaces between, so that secrets can be replaced. A secret is
24 to 64 random bytes, written as ``whsec_`` and their base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from taquba._checks import moment, wrong_type
from taquba.clock import Clock, Duration, SystemClock, seconds
from taquba.errors import InvalidArgument, InvalidSignature

__all__ = ["ID", "SIGNATURE", "TIMESTAMP", "Secret", "Verified", "keys_of", "sign", "verify"]

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"

_PREFIX = "whsec_"
_LEAST, _MOST = 24, 64
_VERSION = "v1"
_MOST_SIGNATURES = 32
_MOST_DIGITS = 15

Secret = str | bytes
"""Of 24 to 64 random bytes: they themselves, or ``whsec_`` and their base64."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A request whose signature is right."""

    id: str
    """The same in each attempt at one delivery: who remembers it handles each only once."""
    timestamp: datetime
    """When the attempt was made."""


def sign(message_id: str, timestamp: int, body: bytes, secret: Secret | Sequence[Secret]) -> str:
    """The value of the header ``webhook-signature``: a signature with each of the secrets.

    Args:
        message_id: The header ``webhook-id``.
        timestamp: The header ``webhook-timestamp``.
        body: All bytes of the body.
        secret: One, or several while one replaces another.

    Raises:
        InvalidArgument: A secret is none.

    Example:
        >>> sign("msg_1", 1700000000, b'{"n": 1}', "whsec_" + "QUJD" * 8)
        'v1,VIScco99Kns1yIRXXa04NtsYNInXuAlxfXjBzG5iRrY='
    """
    return " ".join(
        f"{_VERSION},{base64.b64encode(_digest(key, message_id, str(timestamp), body)).decode()}"
        for key in keys_of(secret)
    )


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secret: Secret | Sequence[Secret],
    *,
    tolerance: Duration = timedelta(minutes=5),
    clock: Clock | None = None,
) -> Verified:
    """Check that a request comes from somebody who has the secret, and is not an old one.

    A request that is repeated within the tolerance is right, too: the sender itself repeats
    those of which it did not get the answer. Remember the id to handle each only once.

    Args:
        headers: Those of the request, in upper or lower case.
        body: The bytes of the body as they were received, before anything decodes them.
        secret: One, or several of which any will do.
        tolerance: How far the sender's clock may be off, in either direction.
        clock: Tells the time; default: the system's.

    Raises:
        InvalidSignature: It is not right; the message says why, and is not for the sender.
        InvalidArgument: The secret is none, or the body no bytes.
    """
    if not isinstance(body, bytes):
        raise wrong_type("body must be the bytes that were received", body)
    keys = keys_of(secret)
    limit = seconds(tolerance, name="tolerance")
    lower = {name.lower(): text for name, text in headers.items()}
    missing = [name for name in (ID, TIMESTAMP, SIGNATURE) if not lower.get(name)]
    if missing:
        raise InvalidSignature(f"the request has no header {missing[0]!r}: it is not signed")
    message_id, stamp = lower[ID], lower[TIMESTAMP]
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= _MOST_DIGITS):
        raise InvalidSignature(f"the header {TIMESTAMP!r} is no time: {stamp[:40]!r}")
    given = [
        signature.encode("utf-8", "replace")
        for version, comma, signature in (
            each.partition(",") for each in lower[SIGNATURE].split(" ", _MOST_SIGNATURES)
        )
        if comma and version == _VERSION
    ]
    matches = False
    for key in keys:
        expected = base64.b64encode(_digest(key, message_id, stamp, body))
        for signature in given:
            matches |= hmac.compare_digest(expected, signature)
    if not matches:
        raise InvalidSignature(
            "no signature is right: the secret is another one, or the request was changed on its "
            "way. Are these the bytes of the body as they were received?"
        )
    age = (clock or SystemClock()).now_ms() / 1000 - int(stamp)
    if abs(age) > limit:
        what = "old" if age > 0 else "ahead of this clock"
        raise InvalidSignature(f"the request is {abs(age):,.0f} s {what}; {limit:g} s are allowed")
    return Verified(message_id, moment(int(stamp) * 1000))


def keys_of(secret: object) -> list[bytes]:
    """The bytes of the secrets, at least one.

    Raises:
        InvalidArgument: There is none, or one that is none.
    """
    if isinstance(secret, (str, bytes)):
        return [_key(secret)]
    if not isinstance(secret, Sequence):
        raise wrong_type("secret must be a str or bytes, or several", secret)
    several = cast("Sequence[object]", secret)
    if not several:
        raise InvalidArgument("no secret was given")
    return [_key(each) for each in several]


def _key(secret: object) -> bytes:
    # The message must not tell the secret.
    if isinstance(secret, str):
        if not secret.startswith(_PREFIX):
            raise InvalidArgument(
                f"a secret must be bytes, or {_PREFIX!r} and their base64; this str is neither"
            )
        try:
            key = base64.b64decode(secret[len(_PREFIX) :], validate=True)
        except (binascii.Error, ValueError):
            raise InvalidArgument(f"what follows {_PREFIX!r} in a secret is no base64") from None
    elif isinstance(secret, bytes):
        key = secret
    else:
        raise wrong_type("a secret must be a str or bytes", secret)
    if not _LEAST <= len(key) <= _MOST:
        raise InvalidArgument(
            f"a secret has {_LEAST} to {_MOST} bytes, and this one has {len(key)}: make one with "
            "secrets.token_bytes(32)"
        )
    return key


def _digest(key: bytes, message_id: str, timestamp: str, body: bytes) -> bytes:
    mac = hmac.new(key, digestmod=hashlib.sha256)
    mac.update(f"{message_id}.{timestamp}.".encode("utf-8", "surrogatepass"))
    mac.update(body)
    return mac.digest()
