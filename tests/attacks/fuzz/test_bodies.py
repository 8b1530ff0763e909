"""Random bodies, decoded in this process: each is a request, or a refusal that names a field.

`BATON_FUZZ_BODIES` is their number. With it, they differ from run to run.
"""

import json
import os
import random
from typing import Any

import psutil
import pytest

from gateway.errors import RequestError
from gateway.openai.chat.tool_schema import ChatTool, ChatToolCall, ChatToolFunction
from gateway.openai.decoding import RequestDecoder
from gateway.openai.errors import error_object
from gateway.openai.schema import ChatBody, ChatMessage, CompletionBody, StreamOptions, TemplateKwargs
from gateway.openai.unsupported import OPTIONS
from gateway.settings import GatewaySettings
from protocol.bounds import MAX_SEED, MAX_TOKENS
from protocol.codec import encode_commands
from protocol.commands import Submit

ASKED = os.environ.get("BATON_FUZZ_BODIES")
BODIES = int(ASKED or 20_000)
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "hi"}
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 64, 65, MAX_TOKENS, MAX_TOKENS + 1, MAX_SEED, -(2**63), 2**64, 10**40),
    *(0.0, -0.0, 0.5, 1.0, 2.0, 1e308, -1e308, 5e-324, "", "x", "none", "auto", "\x00", "\ud7ff", "😀", "x" * 600),
    "\ud800",
    *([], [None], [""], ["a", None], [1], [[1]], [-1], [[]], [["a"]], [1, "a"], [{}], {}, {"a": "b"}, {"5": 1}),
    *({"type": "text"}, {"type": "json_object"}, [{"type": "text", "text": "x"}], [{"type": "image_url"}]),
    *({"include_usage": True}, {"resume_s": 1e9}, {"enable_thinking": "x"}, {"chat_template": "{{ 1 }}"}),
]  # fmt: skip
FIELDS = CompletionBody.__struct_fields__
NESTED = {
    "messages": ChatMessage,
    "stream_options": StreamOptions,
    "chat_template_kwargs": TemplateKwargs,
    "tools": ChatTool,
    "tool_calls": ChatToolCall,
    "function": ChatToolFunction,
}
LISTED: dict[str, dict[str, Any]] = {
    "messages": {"role": "user", "content": "x"},
    "tools": {"type": "function", "function": {"name": "f"}},
    "tool_calls": {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
}
"""Fields that are lists, with what the elements of a valid one have."""


class RandomBodies:
    """Makes bodies that are mostly almost valid."""

    def __init__(self, seed: int | None) -> None:
        self._random = random.Random(seed)

    def value(self, name: str) -> Any:
        """A value for a field: one that is accepted, or any."""
        known = OPTIONS.get(name)
        if known and self._random.random() < 0.5:
            return self._random.choice(known)
        nested = NESTED.get(name)
        if nested is not None and self._random.random() < 0.7:
            made = self.fields(nested.__struct_fields__, 3)
            return [LISTED[name] | made] if name in LISTED else made
        return self._random.choice(VALUES)

    def fields(self, names: tuple[str, ...], most: int) -> dict[str, Any]:
        """Some fields of these names."""
        return {name: self.value(name) for name in self._random.sample(names, self._random.randint(0, most))}

    def body(self, names: tuple[str, ...], valid: dict[str, Any]) -> bytes:
        """A body with some of these fields, now and then with damaged bytes."""
        raw = json.dumps(valid | self.fields(names, 4)).encode()
        if self._random.random() < 0.1:
            at = self._random.randrange(len(raw))
            raw = raw[:at] + self._random.randbytes(self._random.randint(0, 3)) + raw[at + self._random.randint(0, 3) :]
        return raw


def decoded(decoder: RequestDecoder, raw: bytes, *, chat: bool) -> RequestError | None:
    """Decode a body. Returns its refusal, or None for one that is taken, which can be sent to a worker."""
    try:
        request = (decoder.chat if chat else decoder.completion)(raw).request
    except RequestError as error:
        return error
    assert 1 <= len(request.sequences) <= 64
    encode_commands(
        [Submit(1, "r", each.input, each.sampling, each.limits, tenant=each.cache_salt) for each in request.sequences]
    )
    return None


@pytest.mark.timeout(1500)
def test_every_body_is_a_request_or_a_refusal_that_names_its_field() -> None:
    bodies, decoder = RandomBodies(None if ASKED else 1), RequestDecoder(GatewaySettings())
    taken = before = 0
    for number in range(BODIES):
        if number == BODIES // 10:  # what is made once has been made
            before = psutil.Process().memory_info().rss
        chat = bool(number % 2)
        raw = bodies.body(ChatBody.__struct_fields__, CHAT) if chat else bodies.body(FIELDS, COMPLETION)
        refusal = decoded(decoder, raw, chat=chat)
        if refusal is None:
            taken += 1
            continue
        details = json.loads(error_object(refusal))["error"]
        assert refusal.status == 400, raw
        nameless = details["code"] == "invalid_json" or "object" in refusal.text or b'""' in raw
        assert details["param"] or nameless, (raw, refusal.text)
    assert BODIES // 20 < taken < BODIES
    assert psutil.Process().memory_info().rss - before < 16 << 20
