"""Messages with tool calls, results of tools and reasoning."""

from typing import Any

import pytest

from gateway.generation.tools import MAX_ARGUMENT_VALUES, MAX_DEPTH
from protocol.bounds import MAX_NAME, MAX_TOOL_CALLS
from protocol.request import ChatInput, Message, ToolCall
from tests.gateway.openai.bodies import CALL, calling, chat, message, refusal, result

USER = {"role": "user", "content": "hi"}


def decoded(*messages: dict[str, Any]) -> tuple[Message, ...]:
    source = chat(messages=list(messages)).sequences[0].input
    assert isinstance(source, ChatInput)
    return source.messages


def call(arguments: Any = "{}", **fields: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}} | fields


def test_calls_and_their_results_reach_the_worker() -> None:
    asked = '{"city":"Köln",\n "days": 2}'
    messages = decoded(
        USER,
        calling(call(asked), call(id="call_2", index=1)),
        result(),
        result("call_2", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], name="weather"),
        {"role": "assistant", "content": "Sunny."},
    )
    assert messages == (
        Message("user", "hi"),
        Message(
            "assistant", "", tool_calls=(ToolCall("call_1", "weather", asked), ToolCall("call_2", "weather", "{}"))
        ),
        Message("tool", "sunny", tool_call_id="call_1"),
        Message("tool", "a\nb", "weather", tool_call_id="call_2"),
        Message("assistant", "Sunny."),
    )


@pytest.mark.parametrize("arguments", ["", " ", "{}"])
def test_no_arguments_are_an_empty_object(arguments: str) -> None:
    assert decoded(USER, calling(call(arguments)))[1].tool_calls == (ToolCall("call_1", "weather", "{}"),)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "Hm."},
        {"reasoning": "Hm."},
        {"reasoning": "Hm.", "reasoning_content": "Hm."},
        {"reasoning": None, "reasoning_content": "Hm."},
        {"reasoning": "Hm.", "reasoning_content": ""},
    ],
)
def test_the_reasoning_that_was_sent_can_be_sent_back(fields: dict[str, Any]) -> None:
    assert decoded(USER, calling(content="Let me look.", **fields))[1].reasoning == "Hm."


@pytest.mark.parametrize(("content", "text"), [(None, "No."), ("", "No."), ("Well.", "Well.\nNo.")])
def test_a_refusal_is_text_of_the_assistant(content: str | None, text: str) -> None:
    assert decoded(USER, {"role": "assistant", "content": content, "refusal": "No."})[1].content == text


def test_an_id_may_come_again_in_a_later_turn() -> None:
    assert len(decoded(USER, calling(), result(), calling(), result())) == 5


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


ARGUMENTS = "messages[1].tool_calls[0].function.arguments"
REFUSED: list[Any] = [
    *(
        pytest.param([USER, calling(call(arguments))], ARGUMENTS, id=f"arguments {arguments!r:.20}")
        for arguments in (
            "{",
            "[1]",
            "null",
            '"x"',
            "{} {}",
            '{"a": NaN}',
            '{"a": 1e999}',
            '{"a": "\\ud800"}',
            deep(MAX_DEPTH + 2),
            deep(100_000),
            {"a": 1},
            None,
        )
    ),
    pytest.param([USER, calling(call(id=""))], "messages[1].tool_calls[0].id", id="empty id"),
    pytest.param([USER, calling(call(id="x" * (MAX_NAME + 1)))], "messages[1].tool_calls[0].id", id="long id"),
    pytest.param([USER, calling(call(), call())], "messages[1].tool_calls[1].id", id="two of one id"),
    pytest.param([USER, calling(call(type="custom"))], "messages[1].tool_calls[0].type", id="kind of call"),
    pytest.param([USER, calling(call(other=1))], "messages[1].tool_calls[0].other", id="unknown member"),
    pytest.param(
        [USER, calling(*[call(id=str(i)) for i in range(MAX_TOOL_CALLS + 1)])], "messages[1].tool_calls", id="many"
    ),
    pytest.param([USER, calling(), result("call_2")], "messages[2].tool_call_id", id="unknown call"),
    pytest.param([USER, calling(), result(None)], "messages[2].tool_call_id", id="null id"),  # type: ignore[arg-type]
    pytest.param([USER, result(), calling()], "messages[1].tool_call_id", id="result before its call"),
    pytest.param([USER, calling(), {"role": "tool", "content": "x"}], "messages[2].tool_call_id", id="no id"),
    pytest.param([USER, calling(), result(content=None)], "messages[2].content", id="no result"),
    pytest.param(message(tool_calls=[CALL]), "messages[0].tool_calls", id="calls of a user"),
    pytest.param(message(tool_call_id="call_1"), "messages[0].tool_call_id", id="result of a user"),
    pytest.param(message(refusal="No."), "messages[0].refusal", id="refusal of a user"),
    pytest.param(message(reasoning="Hm."), "messages[0].reasoning", id="reasoning of a user"),
    pytest.param([USER, calling(reasoning="a", reasoning_content="b")], "messages[1].reasoning", id="two reasonings"),
]


@pytest.mark.parametrize(("messages", "param"), REFUSED)
def test_bad_calls_and_results_are_refused_at_their_place(messages: Any, param: str) -> None:
    error = refusal(chat, messages=messages)
    assert (error.status, error.field) == (400, param)


def values(count: int) -> str:
    """Arguments with so many values."""
    return '{"a":[' + ",".join(["1"] * (count - 2)) + "]}"


def test_the_values_of_all_arguments_are_bounded_together() -> None:
    """Before: 8 MB of short strings took the gateway 0.4 s, and each worker that got them 4.7 s."""
    half = values(MAX_ARGUMENT_VALUES // 2)
    assert decoded(USER, calling(call(half), call(half, id="call_2")))[1].tool_calls
    error = refusal(chat, messages=[USER, calling(call(half)), result(), calling(call(half), call('{"a": 1}', id="b"))])
    assert (error.status, error.field) == (400, "messages[3].tool_calls[1].function.arguments")
    assert "have over 262144 values" in error.text


def test_calls_at_their_bounds_are_taken() -> None:
    calls = [call(deep(MAX_DEPTH), id=f"{i:0{MAX_NAME}}") for i in range(MAX_TOOL_CALLS)]
    assert len(decoded(USER, calling(*calls))[1].tool_calls) == MAX_TOOL_CALLS
