"""Jobs that the tests of this folder share."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from pydantic import BaseModel

from taquba.errors import PermanentError
from taquba.jobs import BlockingJobContext, JobContext, job, payload_idempotency_key
from taquba.queue import JobView

__all__ = [
    "Charge",
    "Lengths",
    "Mailer",
    "Pid",
    "Receipt",
    "blocking",
    "die",
    "digest",
    "greet",
    "picky",
    "send_email",
]


class Receipt(BaseModel):
    to: str
    number: int


@dataclass
class Mailer:
    """Where e-mails go."""

    sent: list[str] = field(default_factory=list[str])
    failures: int = 0


@job("email.send", max_attempts=5)
async def send_email(ctx: JobContext, to: str, subject: str = "(none)") -> Receipt:
    """Send an e-mail."""
    mailer = ctx.state(Mailer)
    if len(mailer.sent) < mailer.failures:
        mailer.sent.append("failed")
        raise ConnectionError("the server is busy")
    mailer.sent.append(f"{to}: {subject}")
    return Receipt(to=to, number=ctx.attempt)


@job("greet")
async def greet(ctx: JobContext, name: str) -> str:
    return f"Hello, {name}!"


@job("blocking")
def blocking(ctx: BlockingJobContext, words: list[str]) -> dict[str, int]:
    return ctx.memo.memoized("lengths", lambda: {word: len(word) for word in words})


@job("digest", executor="cpu")
def digest(view: JobView, data: bytes, rounds: int) -> tuple[int, bytes]:
    return os.getpid(), data * rounds


@job("die", executor="cpu")
def die(view: JobView, marker: str) -> int:
    """Kills the process that it runs in, the first time."""
    if not os.path.exists(marker):
        with open(marker, "w", encoding="ascii"):
            pass
        os._exit(1)
    return view.attempt


def _is_worth_it(error: Exception) -> bool:
    return not isinstance(error, ValueError)


@job("picky", retry_if=_is_worth_it)
async def picky(ctx: JobContext, what: str) -> None:
    match what:
        case "value":
            raise ValueError("it never will be")
        case "permanent":
            raise PermanentError("no")
        case _:
            raise OSError("maybe later")


@job("charge", max_attempts=3)
class Charge(BaseModel):
    """Charges an order, once."""

    order: int
    cents: int = 100

    async def run(self, ctx: JobContext) -> Receipt:
        mailer = ctx.state(Mailer)
        mailer.sent.append(f"order {self.order}: {self.cents}")
        if len(mailer.sent) <= mailer.failures:
            raise ValueError("refused") if self.cents == 0 else OSError("the bank is closed")
        return Receipt(to=f"order {self.order}", number=ctx.attempt)

    def idempotency_key(self) -> str | None:
        return None if self.order == 0 else f"order {self.order}"

    def retry_if(self, error: Exception) -> bool:
        return self.cents > 0 or not isinstance(error, ValueError)


@job("lengths", idempotency_key=payload_idempotency_key)
@dataclass
class Lengths:
    words: list[str]
    raw: bytes = b"\xff"

    def run(self, ctx: BlockingJobContext) -> dict[str, int]:
        return ctx.memo.memoized("lengths", lambda: {word: len(word) for word in self.words})


@job("pid", executor="cpu")
@dataclass(frozen=True)
class Pid:
    data: bytes

    def run(self, view: JobView) -> tuple[int, bytes]:
        return os.getpid(), self.data
