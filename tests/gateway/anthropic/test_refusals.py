"""Bodies that are refused: every refusal names its field, and none is an error of the server."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.anthropic.errors import ERRORS
from gateway.anthropic.schema import MessagesBody
from gateway.anthropic.unsupported import options_in
from gateway.errors import RequestError
from gateway.generation.tools import MAX_TOOLS
from protocol.bounds import MAX_MESSAGES, MAX_STOPS, MAX_TEXT, MAX_TOOL_CALLS
from tests.gateway.anthropic.bodies import BODY, CALL, DECODER, TOOL, chat, of_assistant, of_user, refusal, refusal_of

AT = "messages[0].content[0]"
TEXT = {"type": "text", "text": "x"}
MARK = {"type": "ephemeral"}


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


BAD: list[tuple[str, Any, str]] = [
    ("model", "", "model"),
    ("max_tokens", 0, "max_tokens"),
    ("max_tokens", None, "max_tokens"),
    ("temperature", 1.1, "temperature"),
    ("top_p", 0, "top_p"),
    ("top_k", -1, "top_k"),
    ("stop_sequences", "x", "stop_sequences"),
    ("stop_sequences", ["x", ""], "stop_sequences[1]"),
    ("stop_sequences", ["x"] * (MAX_STOPS + 1), "stop_sequences"),
    ("stream", 1, "stream"),
    ("resume_s", 5, "resume_s"),
    ("metadata", {"user": "x"}, "metadata.user"),
    ("service_tier", "priority", "service_tier"),
    ("nothing", 1, "nothing"),
    ("system", [{"type": "image"}], "system[0]"),
    ("system", [TEXT | {"citations": [{}]}], "system[0].citations"),
    ("messages", [], "messages"),
    ("messages", {}, "messages"),
    ("messages", [{"role": "tool", "content": "x"}], "messages[0].role"),
    ("messages", [{"role": "user"}], "messages[0].content"),
    ("messages", [{"role": "user", "content": None}], "messages[0].content"),
    ("messages", [{"role": "user", "content": "x", "name": "y"}], "messages[0].name"),
    ("messages", [*BODY["messages"], {"role": "assistant", "content": "x"}], "messages[1].role"),
    ("messages", [{"role": "system", "content": [CALL]}, *BODY["messages"]], f"{AT}.type"),
    ("messages", of_user("x"), AT),
    ("messages", of_user({}), f"{AT}.type"),
    ("messages", of_user({"type": 5}), f"{AT}.type"),
    ("messages", of_user({"type": "text"}), f"{AT}.text"),
    ("messages", of_user(TEXT | {"x": 1}), f"{AT}.x"),
    ("messages", of_user(TEXT | {"cache_control": {"type": "forever"}}), f"{AT}.cache_control.type"),
    ("messages", of_user(TEXT | {"cache_control": MARK | {"scope": {}}}), f"{AT}.cache_control.scope"),
    ("messages", of_user(TEXT | {"cache_control": MARK | {"scope": "world"}}), f"{AT}.cache_control.scope"),
    ("messages", of_user(TEXT, {"type": "image", "source": {}}), "messages[0].content[1].source.type"),
    ("messages", of_user({"type": "document", "source": {}}), AT),
    ("messages", of_user({"type": "search_result"}), AT),
    ("messages", of_user({"type": "video", "source": {"type": "base64", "media_type": "video/mp4", "data": ""}}), AT),
    ("messages", of_user({"type": "server_tool_use"}), AT),
    ("messages", of_user({"type": "\u0000" * 1000}), AT),
    ("messages", of_user(CALL), f"{AT}.type"),
    ("messages", of_user({"type": "thinking", "thinking": "x", "signature": ""}), f"{AT}.type"),
    ("messages", of_user({"type": "tool_result", "tool_use_id": "x"}), f"{AT}.tool_use_id"),
    (
        "messages",
        of_user({"type": "tool_result", "tool_use_id": "x", "content": [{"type": "document"}]}),
        f"{AT}.content[0]",
    ),
    ("messages", of_assistant({"type": "tool_result", "tool_use_id": "x"}), "messages[1].content[0].type"),
    ("messages", of_assistant(CALL, CALL), "messages[1].content[1].id"),
    ("messages", of_assistant(CALL | {"input": []}), "messages[1].content[0].input"),
    ("messages", of_assistant(CALL | {"input": nested(70)}), "messages[1].content[0].input"),
    ("messages", of_assistant(CALL | {"id": ""}), "messages[1].content[0].id"),
    ("messages", of_assistant(CALL | {"caller": {"type": "code_execution_20250825"}}), "messages[1].content[0].caller"),
    ("messages", of_assistant(*(CALL | {"id": f"{i}"} for i in range(MAX_TOOL_CALLS + 1))), "messages[1].content[0]"),
    ("tools", [TOOL, TOOL], "tools[1].name"),
    ("tools", [TOOL | {"name": "a b"}], "tools[0].name"),
    ("tools", [TOOL | {"input_schema": {"type": "string"}}], "tools[0].input_schema.type"),
    ("tools", [TOOL | {"input_schema": nested(70)}], "tools[0].input_schema"),
    ("tools", [TOOL | {"input_schema": None}], "tools[0].input_schema"),
    ("tools", [TOOL | {"parameters": {}}], "tools[0].parameters"),
    ("tools", [TOOL | {"defer_loading": True}], "tools[0].defer_loading"),
    ("tools", [TOOL | {"allowed_callers": ["code_execution_20250825"]}], "tools[0].allowed_callers"),
    ("tools", [TOOL | {"name": f"t{i}"} for i in range(10_000)], f"tools[{MAX_TOOLS}]"),
    ("tools", [TOOL, {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}], "tools[1]"),
    ("tools", [{"type": "bash_20250124", "name": "bash"}], "tools[0]"),
    ("tools", [{"type": "custom", "name": "x"}], "tools[0].input_schema"),
    ("tool_choice", {"type": "any"}, "tool_choice"),
    ("tool_choice", {"type": "tool"}, "tool_choice.name"),
    ("tool_choice", {"type": "some"}, "tool_choice.type"),
    ("tool_choice", "auto", "tool_choice"),
    ("thinking", {"type": "between_tools"}, "thinking.type"),
    ("thinking", {"type": "enabled"}, "thinking.budget_tokens"),
    ("thinking", {"type": "enabled", "budget_tokens": 64}, "thinking.budget_tokens"),
    ("thinking", {"type": "disabled", "budget_tokens": 5}, "thinking.budget_tokens"),
    ("output_config", {"effort": "huge"}, "output_config.effort"),
    ("output_config", {"format": {"type": "text"}}, "output_config.format.type"),
    ("output_config", {"format": {"type": "json_schema"}}, "output_config.format.schema"),
    ("output_config", {"format": {"type": "json_schema", "schema": nested(70)}}, "output_config.format.schema"),
    ("output_config", {"task_budget": {"type": "tokens", "total": 5}}, "output_config.task_budget"),
    ("output_format", {"type": "json_schema", "schema": []}, "output_format.schema"),
]


@pytest.mark.parametrize(("field", "value", "at"), BAD, ids=[f"{at}-{index}" for index, (*_, at) in enumerate(BAD)])
def test_a_field_that_is_wrong(field: str, value: Any, at: str) -> None:
    error = refusal(**{field: value})
    assert (ERRORS.status(error), error.field) == (400, at)
    assert f"`{at}`" in error.text
    assert len(error.text) < 500


@pytest.mark.parametrize(
    "rest", [b"", b',"messages":5}', b',"messages":[]}', b',"x":"\xff"}', b',"x":' + b"[" * 100_000], ids=range(5)
)
def test_a_block_of_an_unknown_type_before_a_body_that_is_broken_or_has_messages_again(rest: bytes) -> None:
    body = json.dumps({"model": "tiny", "max_tokens": 5, "messages": of_user({"type": "x"})}).encode()
    error = refusal_of(body.removesuffix(b"}") + rest)
    assert (ERRORS.status(error), error.field) == (400, f"{AT}.type")


@pytest.mark.parametrize("option", options_in(MessagesBody))
def test_an_option_that_would_change_something(option: str) -> None:
    assert refusal(**{option: {"x": 1}}).field == option


def test_a_named_tool_is_one_of_the_tools() -> None:
    assert refusal(tools=[TOOL], tool_choice={"type": "tool", "name": "x"}).field == "tool_choice.name"


def test_two_formats_that_differ() -> None:
    formats = [{"type": "json_schema", "schema": {"title": title}} for title in "ab"]
    assert refusal(output_config={"format": formats[0]}, output_format=formats[1]).field == "output_format"


def test_a_turn_of_too_much_text() -> None:
    half = {"type": "text", "text": "x" * (MAX_TEXT // 2)}
    assert refusal(messages=of_user(half, half, TEXT)).field == "messages[0].content"
    assert refusal(messages=[{"role": "user", "content": "x" * MAX_TEXT}] * 2).field == "messages[0].content"
    failed = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x" * MAX_TEXT, "is_error": True}
    messages = [*of_assistant(CALL)[:2], *of_user(failed)]
    assert refusal(messages=messages).field == "messages[2].content[0].content"


def test_too_many_results_of_tools() -> None:
    calls = [CALL | {"id": f"{index}"} for index in range(MAX_TOOL_CALLS)]
    results = [{"type": "tool_result", "tool_use_id": call["id"]} for call in calls]
    messages = [*of_assistant(*calls)[:2], *of_user(*results) * (MAX_MESSAGES // MAX_TOOL_CALLS)]
    assert refusal(messages=messages).field == "messages"


def test_many_small_blocks_are_joined_once() -> None:
    """Joining them one by one would copy all of the text for each block."""
    text = {"type": "text", "text": "x" * 40}
    messages = [{"role": "user", "content": [text] * 1000}] * 100
    (message,) = chat(messages=messages).messages
    assert len(message.content) == 100_000 * 41 - 1


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b"[" * 100_000, b'{"messages":' * 2000, b'{"a":"\xff"}', b'{"a":1e999}']
)
def test_a_body_that_is_no_object(raw: bytes) -> None:
    assert ERRORS.status(refusal_of(raw)) == 400


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = st.sampled_from(
    ["type", "text", "content", "id", "name", "input", "tool_use_id", "thinking", "cache_control"]
)
_TYPES = st.sampled_from(["text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image"])
_BLOCKS = st.builds(lambda kind, rest: rest | {"type": kind}, _TYPES, st.dictionaries(_FIELDS, _JSON, max_size=4))
_MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.lists(_BLOCKS | _JSON, max_size=3) | _JSON}
)


@given(messages=st.lists(_MESSAGES, max_size=4), tools=_JSON | st.lists(_JSON, max_size=2), thinking=_JSON)
def test_no_body_is_an_error_of_the_server(messages: Any, tools: Any, thinking: Any) -> None:
    raw = json.dumps(BODY | {"messages": messages, "tools": tools, "thinking": thinking}).encode()
    status = 200
    try:
        DECODER.messages(raw)
    except RequestError as error:
        status = ERRORS.status(error)
    assert status in (200, 400)
