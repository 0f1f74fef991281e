"""The example of an agent, asking a real model (whose service is played here)."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from agent_loop import QUESTION, Agent, AnthropicModel
from taquba import QueueConfig
from taquba.objectstore import MemoryStore
from taquba.workflow import TerminalStatus
from tests.workflow.harness import bed

pytestmark = pytest.mark.anyio


async def test_a_real_model_s_answers_and_refusals(tmp_path: Path) -> None:
    asked: list[dict[str, object]] = []
    answers = [
        httpx.Response(429, headers={"retry-after": "20"}),
        httpx.Response(
            200,
            json={
                "content": [
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "a", "name": "look_into_cart", "input": {}},
                    {"type": "tool_use", "id": "b", "name": "unknown", "input": {}},
                ]
            },
        ),
        httpx.Response(200, json={"content": [{"type": "text", "text": "44.94"}]}),
    ]

    def service(request: httpx.Request) -> httpx.Response:
        assert request.headers["x-api-key"] == "key"
        asked.append(json.loads(request.content))
        return answers.pop(0)

    async with httpx.AsyncClient(transport=httpx.MockTransport(service)) as client:
        agent = Agent(AnthropicModel("model-1", "key", client), tmp_path / "bill")
        config = QueueConfig(backoff_base=0)
        async with bed(agent, store=MemoryStore(), config=config) as t:
            question = json.dumps([{"role": "user", "content": QUESTION}]).encode()
            await t.runtime.submit(question, run_id="r")
            await t.clock.advance(19)
            assert len(asked) == 1
            await t.clock.advance(1)
            assert (await t.end("r")).outcome.result == b"44.94"
    results = asked[-1]["messages"][-1]["content"]  # type: ignore[index]
    assert [part["tool_use_id"] for part in results] == ["a", "b"]
    assert results[1]["content"] == "there is no tool 'unknown'"
    assert (tmp_path / "bill").read_text() == "one call\n" * 2


async def test_an_error_that_comes_again_ends_the_run(tmp_path: Path) -> None:
    def service(request: httpx.Request) -> httpx.Response:
        return httpx.Response(400, text="no such model")

    async with httpx.AsyncClient(transport=httpx.MockTransport(service)) as client:
        agent = Agent(AnthropicModel("model-1", "key", client), tmp_path / "bill")
        async with bed(agent) as t:
            await t.runtime.submit(b"[]", run_id="r")
            end = await t.end("r")
            assert end.termination.status is TerminalStatus.FAILED
            assert end.termination.error == "the model answered 400: no such model"
