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
