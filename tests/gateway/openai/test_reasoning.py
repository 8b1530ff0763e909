"""Options of reasoning, under OpenAI's names, vLLM's and SGLang's."""

from typing import Any

import pytest

from protocol.request import ChatInput, TemplateOptions
from tests.gateway.openai.bodies import chat, completion, refusal


def source(**fields: Any) -> ChatInput:
    found = chat(**fields).sequences[0].input
    assert isinstance(found, ChatInput)
    return found


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, TemplateOptions()),
        ({"reasoning_effort": "low"}, TemplateOptions(reasoning_effort="low")),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low", "thinking": True}},
            TemplateOptions(reasoning_effort="low", thinking=True),
        ),
        ({"enable_thinking": False}, TemplateOptions(enable_thinking=False)),
        ({"enable_thinking": True, "chat_template_kwargs": {"thinking_budget": 0}}, TemplateOptions(True, None, 0)),
        ({"reasoning_effort": "none"}, TemplateOptions(False, False, None, "none")),
        ({"reasoning_effort": "none", "enable_thinking": False}, TemplateOptions(False, False, None, "none")),
        ({"chat_template_kwargs": {"reasoning_effort": "none"}}, TemplateOptions(reasoning_effort="none")),
    ],
)
def test_options_become_variables_of_the_template(fields: dict[str, Any], options: TemplateOptions) -> None:
    assert source(**fields).options == options


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "reasoning_effort"),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, "enable_thinking"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "reasoning_effort"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}}, "reasoning_effort"),
        ({"reasoning_effort": "maximum"}, "reasoning_effort"),
        ({"enable_thinking": "yes"}, "enable_thinking"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ],
)
def test_contradictions_and_unknown_values_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refusal(chat, **fields)
    assert (error.status, error.field) == (400, param)


@pytest.mark.parametrize(("given", "parsed"), [(None, True), (True, True), (False, False)])
def test_reasoning_is_separated_unless_the_client_wants_it_as_text(given: bool | None, parsed: bool) -> None:
    assert source(separate_reasoning=given).parse_reasoning is parsed


def test_the_tokens_of_reasoning_can_be_limited() -> None:
    assert chat().sequences[0].limits.reasoning_tokens is None
    assert chat(thinking_token_budget=0).sequences[0].limits.reasoning_tokens == 0
    assert refusal(completion, thinking_token_budget=1).code == "unknown_parameter"
