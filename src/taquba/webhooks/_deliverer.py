"""Sending webhooks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

from taquba._blocks import AsyncBlock
from taquba._checks import wrong_type
from taquba.clock import Duration, seconds
from taquba.errors import InvalidArgument, MissingDependency
from taquba.logs import about
from taquba.queue import Dead, Delivery, Queue, Result, Retry, Worker
from taquba.webhooks._request import DEFAULT_QUEUE, WebhookRequest
from taquba.webhooks._signing import ID, SIGNATURE, TIMESTAMP, Secret, keys_of, sign

if TYPE_CHECKING:
    import httpx

__all__ = ["WebhookDeliverer"]

logger = logging.getLogger("taquba.webhooks")

_TOO_EARLY = {408, 425, 429}
"""Answers below 500 after which it may be tried again."""
_LONGEST_WAIT = 86_400
"""Seconds that a receiver can ask for."""
_MOST_READ = 64 * 1024
"""Bytes of an answer: it is of no consequence, but an unread one costs the connection."""
_MOST_SHOWN = 200
"""Characters of an answer in an error."""
_MARGIN = 1.0
"""Seconds for httpx to tell of a timeout before the whole attempt is cancelled."""


@final
class WebhookDeliverer(AsyncBlock):
    """Sends the webhooks of one queue, signed. Use it with ``async with``, beside the runtime.

    An attempt is one POST request. An answer of 2xx ends the delivery. After a network error, a
    timeout, or an answer of 408, 425, 429 or 5xx it is tried again, no sooner than the answer's
    ``Retry-After`` says (of up to a day); any other answer, redirects included, makes it a
    dead job at once, as the last failed attempt does. A delivery may arrive more than once, and
    always with the same ``webhook-id``; see `verify`.

    Example:
        >>> async with (                                             # doctest: +SKIP
        ...     Queue.open("s3://bucket/app") as queue,
        ...     WorkflowRuntime(queue, runner, terminal_hook=WebhookHook()) as runtime,
        ...     WebhookDeliverer(queue, secret=os.environ["WEBHOOK_SECRET"]),
        ... ):
        ...     ...
    """

    def __init__(
        self,
        queue: Queue,
        *,
        secret: Secret | Sequence[Secret] | Callable[[str], Secret | Sequence[Secret]] | None,
        queue_name: str = DEFAULT_QUEUE,
        concurrency: int = 16,
        timeout: Duration = 15,
        drain_timeout: Duration | None = 30,
        allow: Callable[[str], bool] | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        """Prepare a deliverer.

        Args:
            queue: An open queue.
            secret: What to sign with: one secret; several, while receivers change from one to
                another; or a function that tells those of a URL. It is not stored. None: nothing
                is signed.
            queue_name: The queue of the webhooks.
            concurrency: Requests at the same time.
            timeout: For one attempt, from connecting to the end of the answer.
            drain_timeout: When the block is left, what is under way may take this long.
            allow: Says of a URL whether it may be asked; a delivery to any other is dead. Where
                URLs come from strangers, keep them from reaching your own network.
            client: What sends; it stays yours to close. Default: one of its own, which takes
                proxies and certificates from the environment as httpx does.

        Raises:
            MissingDependency: httpx is not installed.
            InvalidArgument: Something of the above is wrong.
        """
        try:
            import httpx
        except ImportError as error:
            raise MissingDependency(
                "WebhookDeliverer needs httpx: pip install 'taquba[webhooks]'"
            ) from error
        if not isinstance(queue, Queue):
            raise wrong_type("queue must be an open Queue", queue)
        if client is not None and not isinstance(client, httpx.AsyncClient):
            raise wrong_type("client must be an httpx.AsyncClient", client)
        if secret is not None and not callable(secret):
            keys_of(secret)
        if allow is not None and not callable(allow):
            raise wrong_type("allow must be a function of the URL", allow)
        self._timeout = seconds(timeout, name="timeout")
        if self._timeout == 0:
            raise InvalidArgument("timeout is 0: no request could be sent in time")
        self._httpx = httpx
        self._clock = queue.clock
        self._secret = secret
        self._allow = allow
        self._given = client
        self._client: httpx.AsyncClient | None = None
        self._agent = _user_agent()
        self._worker: Worker = queue.worker(
            queue_name,
            self._deliver,
            concurrency=concurrency,
            job_timeout=self._timeout + _MARGIN,
            cancel_grace=5,
            drain_timeout=drain_timeout,
        )

    async def __aenter__(self) -> WebhookDeliverer:
        self._client = self._given or self._own_client()
        try:
            await self._worker.__aenter__()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            return await self._worker.__aexit__(kind, error, trace)
        finally:
            await self._close()

    def _own_client(self) -> httpx.AsyncClient:
        # As many connections as there are requests; and receivers cannot leave cookies here.
        limits = self._httpx.Limits(max_connections=None, max_keepalive_connections=20)
        client = self._httpx.AsyncClient(limits=limits)
        client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
        return client

    async def _close(self) -> None:
        if self._client is not None and self._given is None:
            await self._client.aclose()

    # -- one attempt ------------------------------------------------------------------------

    async def _deliver(self, delivery: Delivery) -> Result:
        try:
            request = WebhookRequest.of(delivery.headers)
            if self._allow is not None and not self._allow(request.url):
                return Dead(f"webhooks to {request.url} are not allowed here")
            headers = self._signed(delivery, request)
        except InvalidArgument as error:
            return Dead(error)
        try:
            status, retry_after, text = await self._post(request.url, delivery.payload, headers)
        except (self._httpx.InvalidURL, self._httpx.UnsupportedProtocol) as error:
            return Dead(error)
        except self._httpx.TransportError as error:
            return Retry(f"{request.url}: {type(error).__name__}: {error}")
        if 200 <= status < 300:
            logger.debug("delivered webhook to %s", request.url, extra=about(delivery.job))
            return None
        answer = f"{request.url} answered {status}"
        if status in _TOO_EARLY or status >= 500:
            return Retry(f"{answer}: {text}" if text else answer, at=self._until(retry_after))
        if 300 <= status < 400:
            return Dead(f"{answer}, and redirects are not followed: give the URL that it leads to")
        return Dead(f"{answer}: {text}" if text else answer)

    def _signed(self, delivery: Delivery, request: WebhookRequest) -> dict[str, str]:
        stamp = self._clock.now_ms() // 1000
        headers = {
            "Accept-Encoding": "identity",
            "User-Agent": self._agent,
            **request.headers,
            ID: delivery.id,
            TIMESTAMP: str(stamp),
        }
        secret: Any = self._secret
        if callable(secret):
            secret = secret(request.url)
        if secret is not None:
            headers[SIGNATURE] = sign(delivery.id, stamp, delivery.payload, secret)
        return headers

    async def _post(
        self, url: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, str | None, str]:
        """Status, ``Retry-After`` and the beginning of the body of the answer."""
        assert self._client is not None
        async with self._client.stream(
            "POST",
            url,
            content=body,
            headers=headers,
            timeout=self._timeout,
            follow_redirects=False,
        ) as response:
            read = b""
            # Some transports, as those of tests, have read all of it before. Otherwise nothing is
            # decompressed: what is small on the way can be very large.
            consumed = response.is_stream_consumed
            async for chunk in response.aiter_bytes() if consumed else response.aiter_raw():
                read += chunk
                if len(read) > _MOST_READ:
                    break
        text = read[: 4 * _MOST_SHOWN].decode("utf-8", "replace")
        text = "".join(c if c.isprintable() else " " for c in text[:_MOST_SHOWN]).strip()
        return response.status_code, response.headers.get("retry-after"), text

    def _until(self, retry_after: str | None) -> datetime | None:
        """The time before which the receiver does not want to be asked again."""
        if retry_after is None:
            return None
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        latest = now + timedelta(seconds=_LONGEST_WAIT)
        text = retry_after.strip()
        if text.isascii() and text.isdigit():
            return latest if len(text) > 9 else min(now + timedelta(seconds=int(text)), latest)
        try:
            at = parsedate_to_datetime(text)
        except ValueError:
            return None
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        return min(at, latest) if at > now else None


def _user_agent() -> str:
    from taquba import __version__

    return f"taquba/{__version__}"
