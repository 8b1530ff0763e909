"""Options that Baton lacks are taken where they ask for nothing, and refused by name where they do."""

from typing import Any

import pytest

from gateway.openai.schema import ChatBody, ChatMessage, CompletionBody
from gateway.openai.unsupported import OPTIONS
from tests.gateway.openai.bodies import chat, completion, refusal


def _options(body: type[Any]) -> list[str]:
    return [name for name in body.__struct_fields__ if name in OPTIONS]


OFFERED = [(completion, name) for name in _options(CompletionBody)] + [(chat, name) for name in _options(ChatBody)]


@pytest.mark.parametrize(("call", "name"), OFFERED, ids=[f"{call.__name__}-{name}" for call, name in OFFERED])
def test_an_unsupported_option_is_refused_only_with_an_effective_value(call: Any, name: str) -> None:
    for harmless in (None, *OPTIONS[name]):
        call(**{name: harmless})
    for asking in (0.5, True, "x", ["x"], {"type": "x"}):
        if asking in OPTIONS[name]:
            continue
        error = refusal(call, **{name: asking})
        assert (error.status, error.field, error.code) == (400, name, "unsupported")


def test_every_option_is_offered_somewhere() -> None:
    offered = {name for body in (CompletionBody, ChatBody, ChatMessage) for name in _options(body)}
    assert offered == set(OPTIONS)
