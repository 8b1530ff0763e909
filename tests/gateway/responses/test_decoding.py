"""Bodies of the Responses API: every field of OpenAI's client is honoured or refused by its name."""

import json
from typing import Any

import anyio
import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

from gateway.body_budget import BodyBudget, HeldBody
from gateway.errors import RefusalCode, RequestError
from gateway.generation.request import GenerationRequest
from gateway.responses.items.reasoning import encode_reasoning
from gateway.responses.request.schema import ResponsesBody
from gateway.responses.service import ResponseService
from gateway.responses.unsupported import RESPONSES_OPTIONS
from gateway.settings import GatewaySettings
from protocol.bounds import MAX_TEXT
from protocol.errors import ErrorCode
from protocol.request import ChatInput, Grammar, Limits, Message, Pin, TemplateOptions, ToolCall, ToolChoice

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "1"}
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "name": "f"}


def decode(settings: GatewaySettings | None = None, **fields: Any) -> GenerationRequest:
    chosen = settings or GatewaySettings()
    raw = json.dumps({"model": "tiny", "input": "hi"} | fields).encode()
    held = HeldBody(BodyBudget(1 << 30, 1))
    return anyio.run(ResponseService(chosen).decode, raw, held, b"").request


def chat(**fields: Any) -> ChatInput:
    (sequence,) = decode(**fields).sequences
    assert isinstance(sequence.input, ChatInput)
    return sequence.input


def test_every_field_of_the_client_is_known() -> None:
    assert set(ResponseCreateParamsStreaming.__annotations__) <= set(ResponsesBody.__struct_fields__)


def test_every_option_without_a_type_has_its_neutral_values() -> None:
    hints = ResponsesBody.__annotations__
    untyped = {name for name, kind in hints.items() if kind is Any}
    assert untyped
    assert untyped <= set(RESPONSES_OPTIONS)


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("hi", [Message("user", "hi")]),
        ([USER | {"type": "message"}], [Message("user", "hi")]),
        ([USER | {"role": "developer"}], [Message("system", "hi")]),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
            [Message("user", "a\nb")],
        ),
        ([USER, {"role": "assistant", "content": "x"}], [Message("user", "hi"), Message("assistant", "x")]),
        (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
            [Message("assistant", "no")],
        ),
        (
            [CALL, CALL | {"call_id": "d"}, OUTPUT],
            [
                Message("assistant", "", tool_calls=(ToolCall("c", "f", "{}"), ToolCall("d", "f", "{}"))),
                Message("tool", "1", tool_call_id="c"),
            ],
        ),
        (
            [{"role": "assistant", "content": "x"}, CALL],
            [Message("assistant", "x", tool_calls=(ToolCall("c", "f", "{}"),))],
        ),
        (
            [CALL, {"role": "assistant", "content": "x"}],
            [Message("assistant", "", tool_calls=(ToolCall("c", "f", "{}"),)), Message("assistant", "x")],
        ),
        (
            [CALL | {"arguments": ""}, OUTPUT | {"output": [{"type": "input_text", "text": "1"}]}],
            [
                Message("assistant", "", tool_calls=(ToolCall("c", "f", "{}"),)),
                Message("tool", "1", tool_call_id="c"),
            ],
        ),
        (
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, USER | {"role": "assistant"}],
            [Message("assistant", "hi", reasoning="s")],
        ),
        (
            [{"type": "reasoning", "summary": [], "encrypted_content": encode_reasoning("r")}, CALL],
            [Message("assistant", "", tool_calls=(ToolCall("c", "f", "{}"),), reasoning="r")],
        ),
    ],
    ids=lambda value: None,
)
def test_items_are_messages(items: Any, messages: list[Message]) -> None:
    assert list(chat(input=items).messages) == messages


def test_instructions_are_the_first_message() -> None:
    assert chat(instructions="x").messages == (Message("system", "x"), Message("user", "hi"))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "f"}, ToolChoice("required", "f")),
    ],
)
def test_the_choice_of_tools(choice: Any, expected: ToolChoice) -> None:
    found = chat(tools=[TOOL], tool_choice=choice)
    assert found.tool_choice == expected
    assert found.parse_tools == (expected.mode != "none")


@pytest.mark.parametrize(
    ("text", "grammar"),
    [
        (None, None),
        ({"format": {"type": "text"}, "verbosity": "medium"}, None),
        ({"format": {"type": "json_object"}}, Grammar("json_object", "", "text.format")),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
            Grammar("json_schema", '{"type":"object"}', "text.format.schema"),
        ),
    ],
)
def test_the_format_is_a_grammar(text: Any, grammar: Grammar | None) -> None:
    assert decode(text=text).sequences[0].grammar == grammar


@pytest.mark.parametrize(
    ("effort", "options"),
    [
        (None, TemplateOptions()),
        ("none", TemplateOptions(enable_thinking=False, thinking=False, reasoning_effort="none")),
        ("high", TemplateOptions(reasoning_effort="high")),
    ],
)
def test_the_effort_of_reasoning_is_a_variable_of_the_template(effort: Any, options: TemplateOptions) -> None:
    found = chat(reasoning={"effort": effort, "summary": "auto"})
    assert found.options == options
    assert found.parse_reasoning


def test_sampling_and_limits() -> None:
    request = decode(
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=-1,
        seed=-1,
        stop=["a", "", None],
        presence_penalty=1,
        frequency_penalty=-1,
        speculate=False,
        sparse_prefill=True,
        sparse_prefill_keep=0.5,
        cache_salt="s",
        max_tool_calls=3,
        stream=True,
        stream_options={"include_obfuscation": False, "resume_s": 60},
        truncation="disabled",
        service_tier="auto",
        user="u",
        safety_identifier="u",
        prompt_cache_key="k",
        prompt_cache_retention="24h",
        background_options={"completion_window": "soonest"},
    )
    (sequence,) = request.sequences
    assert sequence.limits == Limits(5, ("a",), speculate=False, sparse_prefill=True, sparse_keep=0.5)
    sampling = sequence.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 0)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1)
    assert sequence.cache_salt == "s"
    assert isinstance(sequence.input, ChatInput)
    assert sequence.input.pins == (Pin(1, 86_400),)
    assert sequence.unset == ("min_p", "repetition_penalty")
    assert (request.output.stream, request.output.resume_s, request.output.kept) == (True, 60, True)


PART = {"type": "input_text", "text": "a"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": ""}, "model"),
    ({"input": 3}, "input"),
    ({"input": []}, "input"),
    ({"messages": []}, "messages"),
    ({"input": [USER | {"role": "tool"}]}, "input[0].role"),
    ({"input": [USER, {"content": "x"}]}, "input[1].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [USER | {"arguments": "{}"}]}, "input[0].arguments"),
    ({"input": [USER | {"more": 1}]}, "input[0].more"),
    ({"input": [USER | {"content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].image_url"),
    ({"input": [USER | {"content": [{"file_id": "x", "type": "input_image"}]}]}, "input[0].content[0].file_id"),
    ({"input": [USER | {"content": [{"file_url": "x", "type": "input_file"}]}]}, "input[0].content[0].type"),
    ({"input": [USER | {"content": [PART, {"type": "input_text"}]}]}, "input[0].content[1].text"),
    ({"input": [USER | {"content": [PART | {"refusal": "x"}]}]}, "input[0].content[0].refusal"),
    ({"input": [{"action": {}, "type": "computer_call"}]}, "input[0].type"),
    ({"input": [CALL | {"arguments": "{"}]}, "input[0].arguments"),
    ({"input": [CALL | {"arguments": "[" * 5000}]}, "input[0].arguments"),
    ({"input": [CALL | {"arguments": "[]"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [CALL | {"namespace": "n"}]}, "input[0].namespace"),
    ({"input": [CALL | {"async": True}]}, "input[0].async"),
    ({"input": [OUTPUT]}, "input[0].call_id"),
    ({"input": [CALL, OUTPUT, CALL]}, "input[2].call_id"),
    ({"input": [CALL, CALL]}, "input[1].call_id"),
    ({"input": [{"type": "reasoning", "content": "x" * (MAX_TEXT // 2), "summary": []}] * 2 + [USER]}, "input[1]"),
    ({"input": [CALL, OUTPUT | {"output": None}]}, "input[1].output"),
    ({"input": [CALL, OUTPUT | {"output": [{"type": "input_file"}]}]}, "input[1].output[0].type"),
    ({"input": [{"type": "reasoning", "encrypted_content": "gAAA"}]}, "input[0].encrypted_content"),
    ({"input": [{"type": "reasoning", "encrypted_content": "baton1.!"}]}, "input[0].encrypted_content"),
    ({"input": [{"id": "msg_1"}]}, "input[0].id"),
    ({"input": [{"type": "item_reference"}]}, "input[0].id"),
    ({"input": [CALL | {"call_id": f"c{index}"} for index in range(129)]}, "input[128]"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"tools": [{"type": "web_search", "user_location": {}}]}, "tools[0].type"),
    ({"tools": [{"server_url": "x", "type": "mcp"}]}, "tools[0].type"),
    ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [TOOL | {"parameters": {"type": "array"}}]}, "tools[0].parameters.type"),
    ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "always"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.type"),
    ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "schema": [], "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": {}, "name": "a b"}}}, "text.format.name"),
    ({"text": {"format": {"type": "text", "strict": True}}}, "text.format.strict"),
    ({"reasoning": {"effort": "max"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"truncation": "auto"}, "truncation"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options"),
    ({"background_options": {"completion_window": "2h"}}, "background_options"),
    ({"access_programs": {"cyber": "standard"}}, "access_programs"),
    ({"image": {"context_compression": "enabled"}}, "image"),
    ({"stream_options": {"resume_s": 60}}, "stream_options.resume_s"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
]


@pytest.mark.parametrize(("fields", "field"), REFUSED, ids=[f"{field}-{n}" for n, (_, field) in enumerate(REFUSED)])
def test_a_refusal_names_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode(**fields)
    assert caught.value.field == field
    assert f"`{field}`" in caught.value.text or "previous" in field
    assert caught.value.status in (400, 404)


def test_every_option_is_refused_by_its_name() -> None:
    named = {field.rpartition(".")[2] for _, field in REFUSED}
    assert {name for name, kind in ResponsesBody.__annotations__.items() if kind is Any} <= named


def test_what_is_not_json_is_refused() -> None:
    service, held = ResponseService(GatewaySettings()), HeldBody(BodyBudget(1 << 30, 1))
    for raw in (b"", b"[", b"[]", b"\xff", b'{"input":' + b"[" * 10000):
        with pytest.raises(RequestError) as caught:
            anyio.run(service.decode, raw, held, b"")
        assert caught.value.status == 400


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": [{"id": "msg_1"}]}, "input[0].id"),
    ],
)
def test_a_server_that_keeps_nothing_says_so(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode(GatewaySettings(store="none"), **fields)
    assert (caught.value.field, caught.value.code) == (field, ErrorCode.UNSUPPORTED)
    assert decode(GatewaySettings(store="none")).sequences


def test_an_unknown_field_has_its_own_code() -> None:
    with pytest.raises(RequestError) as caught:
        decode(nothing=1)
    assert caught.value.code is RefusalCode.UNKNOWN_PARAMETER
