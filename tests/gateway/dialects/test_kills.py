"""Workers that are killed while a model reasons, calls a tool or follows a grammar: clients of every API assemble what
they would have had."""

import functools
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest

from tests.gateway.dialects.typing_worker import ARGUMENTS, BEFORE, JSON, QUESTION, REASONING, TEXT
from tests.gateway.harness.real import Real, gather, launch, real_gateway
from tests.pids import pid_of

pytestmark = pytest.mark.anyio

PARAMETERS = {"type": "object"}
FUNCTION = {"name": "wait", "parameters": PARAMETERS}
SCHEMA = {
    "type": "object",
    "properties": {"minutes": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["minutes", "note"],
    "additionalProperties": False,
}
CALLING, CONSTRAINED = "calling", "constrained"
Answer = tuple[str, str, list[tuple[str, Any]], str]
"""The reasoning, the text, the calls, and why the answer stopped, as the client has them."""


async def openai_chat(real: Real, model: str) -> Answer:
    options: dict[str, Any] = {"tools": [{"type": "function", "function": FUNCTION}]}
    if model == CONSTRAINED:
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        options = {"response_format": schema}
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{real.port}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.stream(model=model, messages=QUESTION, **options)
        async with stream as events:
            (choice,) = (await events.get_final_completion()).choices
    message = choice.message
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
    reasoning = (message.model_extra or {})["reasoning_content"]
    return reasoning, message.content or "", calls, choice.finish_reason


async def openai_responses(real: Real, model: str) -> Answer:
    options: dict[str, Any] = {"tools": [{"type": "function", "strict": False, **FUNCTION}]}
    if model == CONSTRAINED:
        options = {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}
    async with (
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{real.port}/v1", api_key="none", max_retries=0) as client,
        client.responses.stream(model=model, input=QUESTION, **options) as events,
    ):
        response = await events.get_final_response()
    reasoning = [each.content[0].text for each in response.output if each.type == "reasoning"]
    calls = [(each.name, json.loads(each.arguments)) for each in response.output if each.type == "function_call"]
    return "".join(reasoning), response.output_text, calls, response.status


async def anthropic_messages(real: Real, model: str) -> Answer:
    options: dict[str, Any] = {"tools": [{"name": "wait", "input_schema": PARAMETERS}]}
    if model == CONSTRAINED:
        options = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    async with anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{real.port}", api_key="none", max_retries=0
    ) as client:
        stream = client.messages.stream(model=model, max_tokens=600, messages=QUESTION, **options)  # type: ignore[arg-type]
        async with stream as events:
            message = await events.get_final_message()
    reasoning = [block.thinking for block in message.content if block.type == "thinking"]
    text = [block.text for block in message.content if block.type == "text"]
    calls = [(block.name, block.input) for block in message.content if block.type == "tool_use"]
    return "".join(reasoning), "".join(text), calls, str(message.stop_reason)


async def ollama_chat(real: Real, model: str) -> Answer:
    options: dict[str, Any] = {"tools": [{"type": "function", "function": FUNCTION}]}
    if model == CONSTRAINED:
        options = {"format": SCHEMA}
    body = {"model": model, "messages": QUESTION, **options}
    async with real.client.stream("POST", "/api/chat", json=body) as response:
        lines = [json.loads(line) async for line in response.aiter_lines()]
    messages = [line["message"] for line in lines]
    calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    return (
        "".join(message.get("thinking", "") for message in messages),
        "".join(message["content"] for message in messages),
        [(call["name"], call["arguments"]) for call in calls],
        lines[-1]["done_reason"],
    )


CLIENTS: dict[str, tuple[Callable[[Real, str], Awaitable[Answer]], str, str]] = {
    "openai chat": (openai_chat, "tool_calls", "stop"),
    "openai responses": (openai_responses, "completed", "completed"),
    "anthropic messages": (anthropic_messages, "tool_use", "end_turn"),
    "ollama chat": (ollama_chat, "stop", "stop"),
}
"""Each client, and its reason for the end of an answer with a call and of one without."""


async def kill_at(real: Real, tokens: int) -> None:
    """Kill every worker that has streams, when this many tokens of each stream were delivered."""

    def due() -> bool:
        live = [len(stream.tokens) for handle in real.router.pool for stream in handle.live.values()]
        return len(live) == len(CLIENTS) and min(live) >= tokens

    def kill() -> None:
        for handle in real.router.pool:
            if handle.live:
                os.kill(pid_of(handle.status), signal.SIGKILL)

    await real.until(due, kill)


@pytest.mark.parametrize("model", [CALLING, CONSTRAINED])
async def test_kills_change_nothing_for_any_client(model: str) -> None:
    """One while the model reasons, and one in the middle of its call or of its JSON."""
    within = len(BEFORE.encode()) + (70 if model == CALLING else 5)
    program = "tests.gateway.dialects.typing_worker"
    async with real_gateway(*[launch(name, model=model, rate=100, program=program) for name in "ab"]) as real:

        async def kill_twice() -> None:
            for tokens in (40, within):
                await kill_at(real, tokens)

        asks = [functools.partial(ask, real, model) for ask, *_ in CLIENTS.values()]
        *answers, _ = await gather(*asks, kill_twice)
        assert sum(worker.status.restarts for worker in real.workers) >= 2
    for (_, *reasons), (reasoning, text, calls, reason) in zip(CLIENTS.values(), answers, strict=True):
        assert reasoning.strip() == REASONING.strip()
        if model == CALLING:
            assert (text.strip(), calls, reason) == (TEXT, [("wait", json.loads(ARGUMENTS))], reasons[0])
        else:
            assert (text, calls, reason) == (JSON, [], reasons[1])
