"""The call of a stage, which is what a stage returns to go on with another one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taquba._checks import shown
from taquba._msgpack import pack, unpack
from taquba.clock import Duration
from taquba.errors import SerializationError
from taquba.workflow import Continue

__all__ = ["Call", "read_payload"]


@dataclass(frozen=True, slots=True)
class Call:
    """One stage and what it is to be given; made by calling a stage.

    Attributes:
        stage: The stage's name.
        data: Its argument, encoded.
        delay: It waits this long; None starts it at once.
        signal: It waits for the signal of this key; None for none.
        timeout: It waits no longer for the signal; None waits as long as it takes.
    """

    stage: str
    data: bytes
    delay: Duration | None = None
    signal: str | None = None
    timeout: Duration | None = None

    def after(self, delay: Duration) -> Call:
        """The same, not before this has passed."""
        return replace(self, delay=delay)

    def on_signal(self, key: str, *, timeout: Duration | None = None) -> Call:
        """The same, when the signal of this key has come, or did not come in time.

        The stage finds what came in ``step.signal``; it is None if nothing did.
        """
        return replace(self, signal=key, timeout=timeout)

    @property
    def payload(self) -> bytes:
        """The payload of the step that runs the stage: what a run is submitted with."""
        return pack([self.stage, self.data])

    def outcome(self) -> Continue:
        """What a runner returns to make this the next step."""
        return Continue(self.payload, after=self.delay, signal=self.signal, timeout=self.timeout)


def read_payload(payload: bytes) -> tuple[str, bytes]:
    """The name of a stage and its encoded argument.

    Raises:
        SerializationError: The payload is of another making.
    """
    try:
        stage, data = unpack(payload)
        if isinstance(stage, str) and isinstance(data, bytes):
            return stage, data
    except (ValueError, TypeError):
        pass
    raise SerializationError(
        f"payload {shown(payload)} does not name a stage: submit the run with a stage's call, "
        "workflow.submit(runtime, workflow.first(…))"
    )
