"""Options that Baton lacks are taken where they ask for nothing, and refused by name where they do."""

import json
import re
from typing import Any

import pytest

from gateway.generation.request import GenerationRequest
from gateway.openai.schema import ChatBody, ChatMessage, CompletionBody, StreamOptions
from gateway.openai.unsupported import COUNTERPARTS, OPTIONS, options_of
from tests.gateway.openai.bodies import chat, completion, message, refusal


def of_message(**fields: Any) -> GenerationRequest:
    return chat(messages=message(**fields))


def of_stream(**fields: Any) -> GenerationRequest:
    return completion(stream=True, stream_options=fields)


PATHS = {of_message: "messages[0].", of_stream: "stream_options."}
OFFERED = [
    (call, name)
    for call, body in (
        (completion, CompletionBody),
        (chat, ChatBody),
        (of_message, ChatMessage),
        (of_stream, StreamOptions),
    )
    for name in options_of(body)
]


@pytest.mark.parametrize(("call", "name"), OFFERED, ids=[f"{call.__name__}-{name}" for call, name in OFFERED])
def test_an_unsupported_option_is_refused_only_with_an_effective_value(call: Any, name: str) -> None:
    for harmless in (None, *OPTIONS[name]):
        call(**{name: harmless})
    for asking in (0.5, True, "x", ["x"], {"type": "x"}):
        if json.dumps(asking) in map(json.dumps, OPTIONS[name]):
            continue
        error = refusal(call, **{name: asking})
        assert (error.status, error.field, error.code) == (400, PATHS.get(call, "") + name, "unsupported")
        accepted = [json.dumps(each, separators=(",", ":")) for each in OPTIONS[name]]
        assert all(each in str(error) for each in ([COUNTERPARTS[name]] if name in COUNTERPARTS else accepted))


def test_every_option_is_offered_somewhere() -> None:
    assert {name for _, name in OFFERED} == set(OPTIONS)
    assert COUNTERPARTS.keys() <= OPTIONS.keys()
    named = {name for text in COUNTERPARTS.values() for name in re.findall(r"`(\w+)`", text)}
    assert named <= {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__} - OPTIONS.keys()


@pytest.mark.parametrize("value", [1, 1.0])
def test_numbers_are_compared_as_json_has_them(value: float) -> None:
    completion(tfs=value)
    assert refusal(completion, tfs=True).field == "tfs"
    assert refusal(completion, mirostat=False).field == "mirostat"
