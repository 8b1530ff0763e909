"""Options of reasoning, as fields of their own and as variables of the chat template."""

from typing import Any

import pytest

from protocol.request import ChatInput, TemplateOptions
from tests.gateway.openai.bodies import chat, refusal


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
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ],
)
def test_contradictions_and_unknown_values_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refusal(chat, **fields)
    assert (error.status, error.field) == (400, param)


def test_reasoning_is_separated() -> None:
    assert source().parse_reasoning
