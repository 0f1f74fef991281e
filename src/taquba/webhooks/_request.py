"""A webhook that is to be sent, as a job: its URL and headers are the job's headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple
from urllib.parse import urlsplit

from taquba._checks import blob, shown, wrong_type
from taquba.errors import InvalidArgument, InvalidUrl
from taquba.queue import Effects, RetryPolicy

__all__ = [
    "DEFAULT_QUEUE",
    "DEFAULT_RETRY",
    "MAX_BODY_SIZE",
    "MAX_URL_LENGTH",
    "WebhookRequest",
    "check_url",
    "enqueue_webhook",
]

DEFAULT_QUEUE = "webhooks"
DEFAULT_RETRY = RetryPolicy(base=timedelta(seconds=10), max=timedelta(hours=6))
"""Up to about a day, with the default number of attempts."""
DEFAULT_ATTEMPTS = 16
MAX_URL_LENGTH = 2048
"""Characters of a URL."""
MAX_BODY_SIZE = 1024 * 1024
"""Bytes of a webhook's body, 1 MiB, unless the caller sets another limit."""

_URL = "webhook.url"
_HEADER = "webhook.header."
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_TEXT = re.compile(r"[\x20-\x7e]*", re.ASCII)
_NOT_IN_URLS = re.compile(r"[\x00-\x20\x7f\\]")
_OURS = {"host", "content-length", "transfer-encoding", "connection"}


def enqueue_webhook(
    effects: Effects,
    url: str,
    body: bytes,
    *,
    headers: Mapping[str, str] | None = None,
    queue_name: str = DEFAULT_QUEUE,
    max_attempts: int = DEFAULT_ATTEMPTS,
    retry: RetryPolicy = DEFAULT_RETRY,
    max_body_size: int = MAX_BODY_SIZE,
    priority: int | None = None,
) -> Effects:
    """Stage a webhook: a POST request, which a `WebhookDeliverer` sends.

    Args:
        effects: Of a step, a handler or a hook: with it the webhook is committed.
        url: Where to, beginning with ``https://`` or ``http://``.
        body: What to send, as it is.
        headers: HTTP headers, of ASCII.
        queue_name: The deliverer's queue.
        max_attempts: After so many, it is a dead job on that queue.
        retry: The delays between the attempts, if the receiver does not say how long to wait.
        max_body_size: Bytes that the body may have.
        priority: Lower is sent first.

    Raises:
        InvalidUrl: The URL is none of http or https, or has a user name or password in it.
        ValueTooLarge: The body is over its limit.
        InvalidArgument: A header cannot be sent, or an option is wrong.

    Example:
        >>> effects = enqueue_webhook(Effects(), "https://example.org/hook", b"done")
        >>> effects.jobs[0].queue
        'webhooks'
    """
    data = blob(body, name="a webhook's body", limit=max_body_size, hint="send a link to it")
    job_headers = {_URL: check_url(url)}
    for name, text in (headers or {}).items():
        job_headers[_HEADER + _check_header(name, text)] = text
    return effects.enqueue(
        queue_name,
        data,
        headers=job_headers,
        max_attempts=max_attempts,
        retry=retry,
        priority=priority,
    )


class WebhookRequest(NamedTuple):
    """What a job of the deliverer's queue says is to be sent."""

    url: str
    headers: dict[str, str]

    @classmethod
    def of(cls, job_headers: Mapping[str, str]) -> WebhookRequest:
        """The request of a job.

        Raises:
            InvalidArgument: It is none that can be sent.
        """
        url = job_headers.get(_URL)
        if url is None:
            raise InvalidArgument(
                f"the job has no header {_URL!r}: it was not made by enqueue_webhook"
            )
        headers = {
            _check_header(name.removeprefix(_HEADER), text): text
            for name, text in job_headers.items()
            if name.startswith(_HEADER)
        }
        return cls(check_url(url), headers)


def check_url(url: object) -> str:
    """The URL, if a webhook can be sent there.

    Raises:
        InvalidUrl: It cannot.
    """
    if not isinstance(url, str):
        raise wrong_type("a webhook's URL must be a str", url)
    if len(url) > MAX_URL_LENGTH:
        raise InvalidUrl(f"a webhook's URL has {len(url):,} characters of {MAX_URL_LENGTH:,}")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        usable = usable and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    else:
        if parts.username is not None or parts.password is not None:
            raise InvalidUrl(
                "a webhook's URL must not have a user name or password in it, since it is shown in "
                "logs: put a token in a header, or let the receiver verify the signature"
            )
    if not usable or _NOT_IN_URLS.search(url):
        raise InvalidUrl(
            f"a webhook cannot be sent to {shown(url)}: it takes https://host/path or http://…"
        )
    return url


def _check_header(name: object, text: object) -> str:
    if not isinstance(name, str) or not isinstance(text, str):
        raise wrong_type(
            "HTTP headers must map str to str", text if isinstance(name, str) else name
        )
    if not _NAME.fullmatch(name) or not _TEXT.fullmatch(text):
        raise InvalidArgument(f"HTTP header {shown(name)} has characters that cannot be sent")
    lower = name.lower()
    if lower in _OURS or lower.startswith("webhook-"):
        raise InvalidArgument(f"HTTP header {name!r} is set by the deliverer")
    return name
