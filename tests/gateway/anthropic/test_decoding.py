"""Bodies of the Messages API as requests."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gateway.anthropic.answer import MessageAnswer
from gateway.anthropic.fields import SIGNATURE
from gateway.anthropic.schema import CountBody, MessagesBody
from gateway.anthropic.unsupported import OPTIONS
from protocol.request import ChatInput, Grammar, Limits, Message, Pin, Sampling, TemplateOptions, ToolCall, ToolChoice
from tests.gateway.anthropic.bodies import BODY, CALL, DECODER, TOOL, chat, of_assistant, of_user, sequence

DOCS = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
LEFT_OPEN = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def test_the_smallest_body() -> None:
    made = sequence()
    assert chat().messages == (Message("user", "hi"),)
    assert made.limits == Limits(max_tokens=64, deadline_ms=made.limits.deadline_ms)
    assert made.sampling == Sampling(temperature=1.0, seed=made.sampling.seed)
    assert made.unset == LEFT_OPEN
    assert (made.grammar, made.cache_salt) == (None, "")


def test_sampling_and_limits() -> None:
    made = sequence(
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        stop_sequences=["a", "b"],
        seed=7,
        speculate=False,
        sparse_prefill=True,
        sparse_prefill_keep=0.5,
        cache_salt="s",
        service_tier="auto",
    )
    assert made.sampling == Sampling(temperature=0.5, top_p=0.9, top_k=3, seed=7)
    assert (made.limits.stop, made.limits.speculate) == (("a", "b"), False)
    assert (made.limits.sparse_prefill, made.limits.sparse_keep) == (True, 0.5)
    assert (made.unset, made.cache_salt) == (("min_p", "repetition_penalty"), "s")


def test_a_stream_that_is_kept() -> None:
    output = DECODER.messages(json.dumps(BODY | {"stream": True, "resume_s": 30}).encode()).request.output
    assert (output.stream, output.resume_s, output.per_prompt) == (True, 30, 1)


@pytest.mark.parametrize(
    "system",
    ["be brief\nand kind", [{"type": "text", "text": "be brief"}, {"type": "text", "text": "and kind"}]],
    ids=["text", "blocks"],
)
def test_the_system_prompt(system: Any) -> None:
    assert chat(system=system).messages == (Message("system", "be brief\nand kind"), Message("user", "hi"))


def test_consecutive_messages_of_a_role_are_one_turn() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "d"}]},
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}]},
        {"role": "user", "content": "e"},
        {"role": "system", "content": "f"},
        {"role": "user", "content": ""},
    ]
    assert chat(messages=messages).messages == (
        Message("user", "a\nb\nc"),
        Message("assistant", "d", tool_calls=(ToolCall("toolu_1", "weather", '{"city":"Oslo"}'),)),
        Message("tool", "rain", tool_call_id="toolu_1"),
        Message("user", "e"),
        Message("system", "f"),
        Message("user", ""),
    )


def test_an_empty_answer_is_sent_back() -> None:
    assert chat(messages=of_assistant()).messages[1] == Message("assistant", "")


@pytest.mark.parametrize(
    ("content", "is_error", "text"),
    [
        (None, None, ""),
        ("rain", False, "rain"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], None, "a\nb"),
        ("no such city", True, "Error: no such city"),
        ("Error: no such city", True, "Error: no such city"),
        (None, True, "Error: "),
    ],
)
def test_the_result_of_a_tool(content: Any, is_error: Any, text: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, "is_error": is_error}
    messages = [*of_assistant(CALL)[:2], {"role": "user", "content": [result, {"type": "text", "text": "well?"}]}]
    assert chat(messages=messages).messages[2:] == (
        Message("tool", text, tool_call_id="toolu_1"),
        Message("user", "well?"),
    )


@pytest.mark.parametrize("signature", [SIGNATURE, "EqQBCgIYAhIM...of another server", ""])
def test_thinking_is_sent_back(signature: str) -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": signature}
    redacted = {"type": "redacted_thinking", "data": "Emw..."}
    messages = of_assistant(thinking, redacted, {"type": "text", "text": "yes", "citations": None})
    assert chat(messages=messages).messages[1] == Message("assistant", "yes", reasoning="hm")


TEXT = {"type": "text", "text": "hi"}
EMPTY = {"type": "text", "text": ""}
MARK = {"cache_control": {"type": "ephemeral"}}
LONG = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "12 C"}
SYSTEM = {"system": [TEXT]}


def test_cache_control_changes_no_prompt() -> None:
    marked = chat(messages=of_user(TEXT | LONG), system=[TEXT | LONG], tools=[TOOL | LONG], **LONG)
    assert structs.replace(marked, pins=()) == chat(messages=of_user(TEXT), system=[TEXT], tools=[TOOL])


@pytest.mark.parametrize(
    ("fields", "pins"),
    [
        ({}, ()),
        ({"system": [TEXT | MARK]}, (Pin(0, 300, 2),)),
        ({"system": [TEXT | LONG, TEXT]}, (Pin(0, 3600, 2),)),
        ({"system": [TEXT, EMPTY, TEXT | MARK]}, (Pin(0, 300, 5),)),
        ({"tools": [TOOL | MARK]}, (Pin(0, 300),)),
        (SYSTEM | {"tools": [TOOL | MARK]}, (Pin(1, 300),)),
        ({"system": [TEXT | MARK], "tools": [TOOL | MARK]}, (Pin(1, 300),)),
        (SYSTEM | {"messages": of_user(TEXT, TEXT | MARK, TEXT)}, (Pin(1, 300, 5),)),
        ({"messages": of_user(TEXT | MARK) + of_user(TEXT | MARK)}, (Pin(0, 300, 5),)),
        (SYSTEM | MARK, (Pin(2, 300),)),
        ({"system": [TEXT | LONG]} | MARK, (Pin(2, 300), Pin(0, 3600, 2))),
        ({"system": [TEXT | MARK]} | LONG, (Pin(2, 3600),)),
        ({"messages": of_assistant(CALL | MARK)}, (Pin(2, 300),)),
        ({"messages": [*of_assistant(CALL)[:2], *of_user(RESULT | MARK)]}, (Pin(3, 300),)),
        ({"messages": [*of_user(TEXT), {"role": "system", "content": [TEXT | MARK]}]}, (Pin(1, 300, 2),)),
    ],
)
def test_cache_control_keeps_the_prompt_up_to_the_last_mark_of_each_time(
    fields: dict[str, Any], pins: tuple[Pin, ...]
) -> None:
    assert set(chat(**fields).pins) == set(pins)


def test_tools() -> None:
    made = chat(tools=[TOOL | {"type": "custom", "strict": True, "eager_input_streaming": True}])
    assert json.loads(made.tools_json) == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "The weather",
                "parameters": TOOL["input_schema"],
                "strict": True,
            },
        }
    ]
    assert (made.parse_tools, made.parse_reasoning, made.tool_choice) == (True, True, ToolChoice())


@pytest.mark.parametrize(
    ("choice", "made", "parsed"),
    [
        ({"type": "auto"}, ToolChoice(), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False), True),
        ({"type": "any"}, ToolChoice("required"), True),
        ({"type": "tool", "name": "weather"}, ToolChoice("required", "weather"), True),
        (
            {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
            ToolChoice("required", "weather", parallel=False),
            True,
        ),
        ({"type": "none"}, ToolChoice("none"), False),
    ],
)
def test_the_choice_of_a_tool(choice: Any, made: ToolChoice, parsed: bool) -> None:
    given = chat(tools=[TOOL], tool_choice=choice)
    assert (given.tool_choice, given.parse_tools) == (made, parsed)


@pytest.mark.parametrize(
    ("thinking", "options", "budget", "omitted"),
    [
        (None, TemplateOptions(), None, False),
        ({"type": "enabled", "budget_tokens": 32}, TemplateOptions(True, True, 32), 32, False),
        ({"type": "enabled", "budget_tokens": 32, "display": "omitted"}, TemplateOptions(True, True, 32), 32, True),
        ({"type": "disabled"}, TemplateOptions(False, False), None, False),
        ({"type": "adaptive"}, TemplateOptions(), None, False),
        ({"type": "adaptive", "display": "summarized"}, TemplateOptions(), None, False),
        ({"type": "adaptive", "display": "omitted"}, TemplateOptions(), None, True),
    ],
)
def test_thinking(thinking: Any, options: TemplateOptions, budget: int | None, omitted: bool) -> None:
    decoded = DECODER.messages(json.dumps(BODY | {"thinking": thinking}).encode())
    assert chat(thinking=thinking).options == options
    limits = decoded.request.sequences[0].limits
    assert (limits.reasoning_tokens, limits.reasoning_optional) == (budget, budget is not None)
    assert decoded.renderer == MessageAnswer(max_tokens=64, omit_thinking=omitted)


@pytest.mark.parametrize(("effort", "made"), [("low", "low"), ("xhigh", "xhigh"), ("max", "xhigh")])
def test_effort(effort: str, made: Any) -> None:
    assert chat(output_config={"effort": effort}).options == TemplateOptions(reasoning_effort=made)


FORMAT = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
SOURCE = '{"type":"object","properties":{"a":{"type":"integer"}}}'


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"output_config": {"format": FORMAT}}, "output_config.format.schema"),
        ({"output_format": FORMAT}, "output_format.schema"),
        ({"output_format": FORMAT, "output_config": {"format": FORMAT}}, "output_config.format.schema"),
    ],
)
def test_structured_output(fields: dict[str, Any], at: str) -> None:
    assert sequence(**fields).grammar == Grammar("json_schema", SOURCE, at)


def test_a_prompt_that_is_counted_may_end_with_the_assistant() -> None:
    body = {"model": "tiny", "messages": of_assistant({"type": "text", "text": "yes"})[:2], "tools": [TOOL]}
    query = DECODER.count(json.dumps(body).encode()).query
    assert (query.model, query.want) == ("tiny", "count")
    made = query.input
    assert isinstance(made, ChatInput)
    assert made.messages == (Message("user", "hi"), Message("assistant", "yes"))
    assert made.tools_json


def test_the_edit_that_keeps_all_thinking_changes_nothing() -> None:
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    assert chat(context_management=edits) == chat()


@pytest.mark.parametrize("field", sorted({*MessagesBody.__struct_fields__, *CountBody.__struct_fields__}))
def test_every_field_is_described(field: str) -> None:
    assert f"`{field}`" in DOCS.partition("## Anthropic's Messages API")[2].partition("\n## ")[0]


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_every_option_that_is_refused_is_described(option: str) -> None:
    assert f"`{option}`" in DOCS.partition("## Anthropic's Messages API")[2].partition("\n## ")[0]
