"""Bodies at the door, as short as a test wants them."""

import json
from typing import Any

import pytest

from gateway.errors import RequestError
from gateway.generation.request import GenerationRequest
from gateway.openai.decoding import RequestDecoder
from gateway.settings import GatewaySettings

COMPLETION = {"model": "tiny", "prompt": "hi"}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
DECODER = RequestDecoder(GatewaySettings())


def completion(**fields: Any) -> GenerationRequest:
    return DECODER.completion(json.dumps(COMPLETION | fields).encode()).request


def chat(**fields: Any) -> GenerationRequest:
    return DECODER.chat(json.dumps(CHAT | fields).encode()).request


def refusal(call: Any, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call(**fields)
    return caught.value


def message(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "hi"} | fields]


CALL: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


def tool(name: str = "weather", **fields: Any) -> dict[str, Any]:
    """The definition of a tool."""
    return {"type": "function", "function": {"name": name} | fields}


def calling(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A message of the assistant that calls tools."""
    return {"role": "assistant", "content": None, "tool_calls": list(calls or (CALL,))} | fields


def result(call: str = "call_1", content: Any = "sunny", **fields: Any) -> dict[str, Any]:
    """The result of a call."""
    return {"role": "tool", "tool_call_id": call, "content": content} | fields
