"""Bodies of the Messages API, and what the decoder makes of them."""

import json
from typing import Any

from gateway.anthropic.decoding import MessagesDecoder
from gateway.errors import RequestError
from gateway.generation.request import SequenceRequest
from gateway.settings import GatewaySettings
from protocol.request import ChatInput

BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
TOOL: dict[str, Any] = {
    "name": "weather",
    "description": "The weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
DECODER = MessagesDecoder(GatewaySettings(max_resume_s=60))


def sequence(**fields: Any) -> SequenceRequest:
    """The sequence that a body with these fields asks for."""
    return DECODER.messages(json.dumps(BODY | fields).encode()).request.sequences[0]


def chat(**fields: Any) -> ChatInput:
    made = sequence(**fields).input
    assert isinstance(made, ChatInput)
    return made


def refusal(**fields: Any) -> RequestError:
    """The refusal of a body with these fields."""
    return refusal_of(json.dumps(BODY | fields).encode())


def refusal_of(raw: bytes) -> RequestError:
    try:
        DECODER.messages(raw)
    except RequestError as error:
        return error
    raise AssertionError("the body was accepted")


def of_user(*blocks: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


def of_assistant(*blocks: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": list(blocks)},
        {"role": "user", "content": "go on"},
    ]
