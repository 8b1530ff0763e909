"""Calls in earlier messages, in every dialect: the values in all their arguments are bounded together."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from gateway.anthropic.decoding import MessagesDecoder
from gateway.body_budget import BodyBudget, HeldBody
from gateway.errors import RequestError
from gateway.generation.tools import MAX_ARGUMENT_VALUES, MAX_DEPTH
from gateway.ollama.decoding import OllamaDecoder
from gateway.openai.decoding import RequestDecoder
from gateway.responses.service import ResponseService
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from protocol.request import ChatInput, ToolCall

USER = {"role": "user", "content": "hi"}
SETTINGS = GatewaySettings()
Arguments = dict[str, Any]
Read = Callable[..., ChatInput]


def read(path: str, *calls: Arguments) -> ChatInput:
    """The prompt of a request with these earlier calls."""

    async def decode() -> Any:
        match path:
            case "/v1/chat/completions":
                items = [
                    {"id": f"c{at}", "type": "function", "function": {"name": "f", "arguments": json.dumps(each)}}
                    for at, each in enumerate(calls)
                ]
                called = {"role": "assistant", "content": None, "tool_calls": items}
                return RequestDecoder(SETTINGS).chat(body(messages=[USER, called, USER]))
            case "/v1/messages":
                blocks = [
                    {"type": "tool_use", "id": f"c{at}", "name": "f", "input": each} for at, each in enumerate(calls)
                ]
                called = {"role": "assistant", "content": blocks}
                return MessagesDecoder(SETTINGS).messages(body(messages=[USER, called, USER], max_tokens=8))
            case "/api/chat":
                named = [{"id": f"c{at}", "function": {"name": "f", "arguments": one}} for at, one in enumerate(calls)]
                called = {"role": "assistant", "content": "", "tool_calls": named}
                return OllamaDecoder(Router(SETTINGS), SETTINGS).chat(body(messages=[USER, called, USER]))
            case _:
                given = [
                    {"type": "function_call", "call_id": f"c{at}", "name": "f", "arguments": json.dumps(each)}
                    for at, each in enumerate(calls)
                ]
                held = HeldBody(BodyBudget(1 << 30, 1))
                return await ResponseService(SETTINGS).decode(body(input=[USER, *given, USER]), held, b"")

    made = anyio.run(decode).request.sequences[0].input
    assert isinstance(made, ChatInput)
    return made


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny", **fields}).encode()


@pytest.fixture(params=["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"])
def reads(request: pytest.FixtureRequest) -> Read:
    return partial(read, request.param)


def test_the_arguments_are_the_text_of_an_object(reads: Read) -> None:
    made = reads({"city": "Zürich"}, {})
    found = [message for message in made.messages if message.tool_calls]
    assert [message.role for message in found] == ["assistant"]
    assert [(call.name, json.loads(call.arguments)) for call in found[0].tool_calls] == [
        ("f", {"city": "Zürich"}),
        ("f", {}),
    ]
    assert all(isinstance(call, ToolCall) for call in found[0].tool_calls)


def test_the_values_of_all_arguments_are_bounded_together(reads: Read) -> None:
    """Before: only chat completions bounded them. Each value is an object in the worker, which decodes the text."""
    half = {"a": [1] * (MAX_ARGUMENT_VALUES // 2 - 2)}
    assert reads(half)
    with pytest.raises(RequestError, match="have over 262144 values") as caught:
        reads(half, {"a": [1, 2]}, half)
    assert caught.value.status == 400
    assert caught.value.field


def test_deep_arguments_are_refused(reads: Read) -> None:
    """Before: the Responses API took them up to the recursion limit of the decoder."""
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    with pytest.raises(RequestError, match="nested more than 64 levels deep"):
        reads({"a": value})
