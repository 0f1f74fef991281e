"""An agent that thinks with a language model and acts with tools, and pays for no thought twice.

Each turn of the agent is a step: the model is asked (memoized), and if it wants tools they are
run (each memoized) and their results go to the next turn. With --crash-at the process kills
itself in the middle of that turn, after the model has answered and before the tool has run. The
bill counts calls of the model: the turn that was interrupted is run again, but its answer was
kept.

    $ python examples/agent_loop.py --store state --bill bill.txt --crash-at 1
    turn 0: the model wants look_into_cart({})
    turn 1: the model wants add_up({"prices": [12, 30], "tax": 7})
    (killed)
    $ python examples/agent_loop.py --store state --bill bill.txt
    turn 1, attempt 2: the model wants add_up({"prices": [12, 30], "tax": 7})
    turn 2: the model answers: The books cost 44.94 with tax.
    3 calls of the model were paid for

By default a small program plays the model, so that this runs anywhere and always the same. With
--model NAME (say, --model claude-sonnet-4-5) a real one is asked; that needs ANTHROPIC_API_KEY
in the environment, and httpx: pip install 'taquba[webhooks]'.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from taquba import Queue
from taquba.workflow import (
    Continue,
    Outcome,
    PermanentError,
    Step,
    Succeed,
    TransientError,
    WorkflowRuntime,
)

Message = dict[str, Any]
"""One message of a conversation, in the form of Anthropic's Messages API."""

QUESTION = "What do the books in my cart cost, with 7 % tax?"
MOST_TURNS = 10


# -- tools ------------------------------------------------------------------------------------


async def look_into_cart() -> str:
    return json.dumps([{"title": "Durable Things", "price": 12}, {"title": "Queues", "price": 30}])


async def add_up(prices: list[float], tax: float) -> str:
    return f"{sum(prices) * (1 + tax / 100):.2f}"


TOOLS: dict[str, Callable[..., Awaitable[str]]] = {
    "look_into_cart": look_into_cart,
    "add_up": add_up,
}
DESCRIPTIONS: list[dict[str, Any]] = [
    {
        "name": "look_into_cart",
        "description": "The books in the user's cart.",
        "input_schema": {"type": "object", "properties": {}},
    },
    {
        "name": "add_up",
        "description": "Adds prices up, and a tax in percent.",
        "input_schema": {
            "type": "object",
            "properties": {
                "prices": {"type": "array", "items": {"type": "number"}},
                "tax": {"type": "number"},
            },
            "required": ["prices", "tax"],
        },
    },
]


# -- models -----------------------------------------------------------------------------------


class Model(Protocol):
    async def answer(self, conversation: list[Message]) -> list[dict[str, Any]]:
        """The content of the next message: texts, and uses of tools."""
        ...


class PlayedModel:
    """Says what a model would say here; always the same."""

    async def answer(self, conversation: list[Message]) -> list[dict[str, Any]]:
        await asyncio.sleep(0.05)
        results = [
            part["content"]
            for message in conversation
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "tool_result"
        ]
        match results:
            case []:
                return [_use("look_into_cart", {})]
            case [cart]:
                prices = [book["price"] for book in json.loads(cart)]
                return [_use("add_up", {"prices": prices, "tax": 7})]
            case _:
                return [
                    {"type": "text", "text": f"The books cost {results[-1]} with tax."},
                ]


def _use(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"use-{name}", "name": name, "input": arguments}


class AnthropicModel:
    """A real model; see https://docs.anthropic.com/en/api/messages."""

    def __init__(self, name: str, key: str, client: Any = None) -> None:
        import httpx

        self._name = name
        self._key = key
        self._client = client or httpx.AsyncClient(timeout=120)

    async def answer(self, conversation: list[Message]) -> list[dict[str, Any]]:
        answer = await self._client.post(
            "https://api.anthropic.com/v1/messages",
            headers={"x-api-key": self._key, "anthropic-version": "2023-06-01"},
            json={
                "model": self._name,
                "max_tokens": 1024,
                "tools": DESCRIPTIONS,
                "messages": conversation,
            },
        )
        if answer.status_code == 429 or answer.status_code >= 500:
            # It says when to come again; the step waits at least that long.
            wait = answer.headers.get("retry-after", "")
            raise TransientError(
                f"the model answered {answer.status_code}",
                retry_after=float(wait) if wait.isdigit() else None,
            )
        if answer.status_code != 200:
            raise PermanentError(f"the model answered {answer.status_code}: {answer.text[:500]}")
        content: list[dict[str, Any]] = answer.json()["content"]
        return content


# -- the agent --------------------------------------------------------------------------------


class Agent:
    """The runner: one turn is one step, and the conversation goes from step to step."""

    def __init__(self, model: Model, bill: Path, crash_at: int | None = None) -> None:
        self.model = model
        self.bill = bill
        self.crash_at = crash_at

    async def run_step(self, step: Step) -> Outcome:
        if step.number == MOST_TURNS:
            raise PermanentError(f"no answer after {MOST_TURNS} turns")
        conversation: list[Message] = json.loads(step.payload)
        content = await step.memo.memoized("model", partial(self.ask, conversation))
        uses = [part for part in content if part["type"] == "tool_use"]
        turn = f"turn {step.number}" + (f", attempt {step.attempt}" if step.attempt > 1 else "")
        if not uses:
            text = " ".join(part["text"] for part in content)
            print(f"{turn}: the model answers: {text}", flush=True)
            return Succeed(text.encode())
        results: list[dict[str, Any]] = []
        for use in uses:
            print(f"{turn}: the model wants {use['name']}({json.dumps(use['input'])})", flush=True)
            if step.number == self.crash_at:
                os.kill(os.getpid(), signal.SIGKILL)
            result = await step.memo.memoized(f"tool {use['id']}", partial(self.act, use))
            results.append({"type": "tool_result", "tool_use_id": use["id"], "content": result})
        conversation.append({"role": "assistant", "content": content})
        conversation.append({"role": "user", "content": results})
        return Continue(json.dumps(conversation).encode())

    async def ask(self, conversation: list[Message]) -> list[dict[str, Any]]:
        content = await self.model.answer(conversation)
        with self.bill.open("a") as bill:
            bill.write("one call\n")
        return content

    async def act(self, use: dict[str, Any]) -> str:
        tool = TOOLS.get(use["name"])
        return f"there is no tool {use['name']!r}" if tool is None else await tool(**use["input"])


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", default="agent-state", help="folder or URL of the state")
    parser.add_argument("--bill", type=Path, default=Path("bill.txt"), help="calls of the model")
    parser.add_argument("--model", help="ask this model instead of the played one")
    parser.add_argument("--crash-at", type=int, help="die in the middle of this turn")
    options = parser.parse_args()
    model: Model = PlayedModel()
    if options.model is not None:
        key = os.environ.get("ANTHROPIC_API_KEY")
        if not key:
            parser.error("--model needs ANTHROPIC_API_KEY in the environment")
        model = AnthropicModel(options.model, key)
    agent = Agent(model, options.bill, options.crash_at)
    async with Queue.open(options.store) as queue, WorkflowRuntime(queue, agent) as runtime:
        question = json.dumps([{"role": "user", "content": QUESTION}]).encode()
        run = await runtime.submit(question, run_id="question-1")
        end = await runtime.wait(run.run_id)
        if end.termination.error is not None:
            print(f"{end.termination.status.value}: {end.termination.error}")
    print(f"{len(options.bill.read_text().splitlines())} calls of the model were paid for")


if __name__ == "__main__":
    if "--crash-at" in sys.argv and os.environ.get("CHILD") is None:
        # Somebody must be left to say that it was killed.
        child = subprocess.run([sys.executable, *sys.argv], env={**os.environ, "CHILD": "1"})
        print("(killed)" if child.returncode == -signal.SIGKILL else child.returncode)
    else:
        asyncio.run(main())
