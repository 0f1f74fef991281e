"""A terminal hook that sends webhooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from taquba._checks import whole, wrong_type
from taquba.errors import InvalidArgument
from taquba.queue import MAX_PAYLOAD_SIZE, Effects, RetryPolicy
from taquba.webhooks._request import (
    DEFAULT_ATTEMPTS,
    DEFAULT_QUEUE,
    DEFAULT_RETRY,
    MAX_BODY_SIZE,
    check_url,
    enqueue_webhook,
)
from taquba.workflow import RunOutcome, TerminalStatus

__all__ = ["WebhookHook"]

RUN_ID = "Workflow-Run-Id"
RUN_STATUS = "Workflow-Run-Status"


@final
class WebhookHook:
    """Tells a URL of every run that has ended, by a job that a `WebhookDeliverer` sends.

    The body is the result of a run that succeeded, or else the error's text, in UTF-8; the
    headers ``Workflow-Run-Id`` and ``Workflow-Run-Status`` (``succeeded``, ``failed`` or
    ``cancelled``) say of what. Runs without a URL are left out, and leave no job behind.

    Example:
        >>> hook = WebhookHook(url_header="callback_url")
        >>> runtime = WorkflowRuntime(                               # doctest: +SKIP
        ...     queue, runner, terminal_hook=hook
        ... )
        >>> await runtime.submit(                                    # doctest: +SKIP
        ...     b"…", headers={"callback_url": "https://example.org/done"}
        ... )
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        url_header: str | None = "callback_url",
        body: Callable[[RunOutcome], bytes] | None = None,
        content_type: str = "application/octet-stream",
        queue_name: str = DEFAULT_QUEUE,
        max_attempts: int = DEFAULT_ATTEMPTS,
        retry: RetryPolicy = DEFAULT_RETRY,
        max_body_size: int = MAX_BODY_SIZE,
    ) -> None:
        """Prepare a hook.

        Args:
            url: Where runs are told that name no URL of their own. None: they are not.
            url_header: The header of a run that has its URL. None: runs cannot have one.
            body: Makes the body of an outcome, instead of its result or error.
            content_type: Of results, and of what `body` makes. Errors are plain text.
            queue_name: The deliverer's queue.
            max_attempts: After so many attempts, a delivery is a dead job on that queue.
            retry: The delays between them, if the receiver does not say how long to wait.
            max_body_size: Bytes of the body. If it has more, the notification is dead at once.

        Raises:
            InvalidArgument: Something of the above is wrong.
        """
        if url is None and url_header is None:
            raise InvalidArgument("a WebhookHook needs a url, a url_header, or both")
        if url_header is not None and not isinstance(url_header, str):
            raise wrong_type("url_header must be a str", url_header)
        if body is not None and not callable(body):
            raise wrong_type("body must be a function of the outcome", body)
        self._url = None if url is None else check_url(url)
        self._url_header = url_header
        self._body = body
        self._content_type = content_type
        self._queue_name = queue_name
        self._max_attempts = max_attempts
        self._retry = retry
        self._max_body_size = whole(max_body_size, "max_body_size", 1, MAX_PAYLOAD_SIZE)
        self._stage(Effects(), "https://host/", b"", content_type, "", "")  # checks the rest

    def observes(self, outcome: RunOutcome) -> bool:
        """Whether the run has a URL that is to be told."""
        return bool(self._url_of(outcome))

    async def on_termination(self, outcome: RunOutcome, effects: Effects) -> None:
        """Stage the delivery.

        Raises:
            InvalidArgument: The URL is none, or the body is too large.
        """
        if self._body is not None:
            body, kind = self._body(outcome), self._content_type
        elif outcome.status is TerminalStatus.SUCCEEDED:
            body, kind = outcome.result or b"", self._content_type
        else:
            body, kind = (outcome.error or "").encode(), "text/plain; charset=utf-8"
        url = self._url_of(outcome)
        self._stage(effects, url, body, kind, outcome.run_id, outcome.status.value)

    def _url_of(self, outcome: RunOutcome) -> str:
        own = None if self._url_header is None else outcome.headers.get(self._url_header)
        return own or self._url or ""

    def _stage(
        self, effects: Effects, url: str, body: bytes, kind: str, run_id: str, status: str
    ) -> None:
        enqueue_webhook(
            effects,
            url,
            body,
            headers={"Content-Type": kind, RUN_ID: run_id, RUN_STATUS: status},
            queue_name=self._queue_name,
            max_attempts=self._max_attempts,
            retry=self._retry,
            max_body_size=self._max_body_size,
        )
