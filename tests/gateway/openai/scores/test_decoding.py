"""Bodies of `/v1/score`: texts and what is scored of them, and refusals that name the field."""

import json
from typing import Any
from unittest.mock import Mock

import pytest

from gateway.errors import RequestError
from gateway.openai.scores.answer import ScoreAnswer
from gateway.openai.scores.decoding import ScoreDecoder
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Decoded
from protocol.bounds import MAX_TEXT, MAX_TOKENS
from protocol.request import Input, TextInput, TokensInput


def decoded(settings: GatewaySettings | None = None, **fields: Any) -> Decoded:
    body = json.dumps({"model": "tiny"} | fields).encode()
    return ScoreDecoder(settings or GatewaySettings(), Mock()).score(body)


@pytest.mark.parametrize(
    ("prompt", "completion", "inputs", "scored"),
    [
        ("a", "bc", [TextInput("abc")], ["bc"]),
        ("", "bc", [TextInput("bc")], ["bc"]),
        ("ab", None, [TextInput("ab")], [None]),
        (["a", "b"], None, [TextInput("a"), TextInput("b")], [None, None]),
        ("a", ["b", "c"], [TextInput("ab"), TextInput("ac")], ["b", "c"]),
        (["a", "x"], ["b", "c"], [TextInput("ab"), TextInput("xc")], ["b", "c"]),
        ([1, 2], [3, 4, 5], [TokensInput((1, 2, 3, 4, 5))], [3]),
        ([1], [[2], [3, 4]], [TokensInput((1, 2)), TokensInput((1, 3, 4))], [1, 2]),
        ([[1], [2]], [[3], [4]], [TokensInput((1, 3)), TokensInput((2, 4))], [1, 1]),
        ([1, 2], None, [TokensInput((1, 2))], [None]),
    ],
)
def test_a_completion_follows_its_prompt(prompt: Any, completion: Any, inputs: list[Input], scored: list[Any]) -> None:
    request, renderer, *_ = decoded(prompt=prompt, completion=completion)
    assert [each.input for each in request.sequences] == inputs
    assert renderer == ScoreAnswer(tuple(scored))
    for each in request.sequences:
        assert (each.limits.max_tokens, each.prompt_logprobs, each.sampling.logprobs) == (0, 1, None)


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({}, "prompt", "required"),
        ({"prompt": "a", "completion": ""}, "completion", "empty"),
        ({"prompt": "a", "completion": ["b", ""]}, "completion[1]", "empty"),
        ({"prompt": "a", "completion": [1]}, "completion", "same kind"),
        ({"prompt": [[1], [2]], "completion": ["a", "b"]}, "completion[0]", "same kind"),
        ({"prompt": ["a", "b"], "completion": "c"}, "completion", "1 of `completion` and 2 of `prompt`"),
        ({"prompt": ["a"], "completion": ["b", "c"]}, "completion", "2 of `completion` and 1 of `prompt`"),
        ({"prompt": "a", "completion": [1, "b"]}, "completion", "mixes"),
        ({"prompt": "a", "completion": ["b"] * 65}, "completion", "65 sequences"),
        ({"prompt": ["a"] * 65}, "prompt", "65 sequences"),
        ({"prompt": "a" * (MAX_TEXT - 1), "completion": "bc"}, "completion", "4194305 characters"),
        ({"prompt": [1] * (MAX_TOKENS - 1), "completion": [2, 3]}, "completion", "1048577 tokens"),
        ({"prompt": "a", "max_tokens": 5}, "max_tokens", "not a parameter"),
        ({"prompt": ["a"] * 65}, "prompt", "^65 sequences; one request may have 64$"),
        ({"prompt": "a", "completion": ["b"] * 65}, "completion", "^65 sequences; one request may have 64$"),
    ],
)
def test_a_refusal_names_the_field(fields: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(RequestError, match=text) as refused:
        decoded(**fields)
    assert (refused.value.status, refused.value.field) == (400, field)


def test_a_long_prompt_is_not_repeated_for_more_completions_than_a_request_may_have() -> None:
    """Before: it was copied for each of them, gigabytes, and then they were counted."""
    with pytest.raises(RequestError, match="are too much for one request") as refused:
        decoded(GatewaySettings(max_fanout_bytes=1 << 20), prompt="a" * (1 << 20), completion=["b", "c"])
    assert refused.value.field == "completion"
