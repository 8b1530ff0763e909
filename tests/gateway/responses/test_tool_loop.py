"""Calls and reasoning as OpenAI's client assembles them from our events, and as it sends them back."""

import json
from typing import Any

import anyio
import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.body_budget import BodyBudget, HeldBody
from gateway.generation.delta import OutputDelta, ReasoningDelta, StopReason, TextDelta, ToolCallDelta
from gateway.responses.service import ResponseService
from gateway.settings import GatewaySettings
from protocol.events import Logprobs, TokenLogprob
from protocol.request import ChatInput, Message, ToolCall
from tests.gateway.responses.rendering import CALLS, answer, rendered, whole

TOOLS: Any = [
    {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True},
    {"type": "function", "name": "time", "parameters": {"type": "object"}, "strict": False},
]
RESULTS = [
    {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
    {"type": "function_call_output", "call_id": "call_2", "output": "noon"},
]
EXPECTED = (
    Message("user", "weather and time in Paris?"),
    Message(
        "assistant",
        "I look it up.",
        tool_calls=(ToolCall("call_1", "weather", '{"city": "Paris"}'), ToolCall("call_2", "time", "{}")),
        reasoning="Let me look.",
    ),
    Message("tool", "sunny", tool_call_id="call_1"),
    Message("tool", "noon", tool_call_id="call_2"),
)


def assembled() -> Any:
    """The response that the client's stream helper makes of our events. Its import takes seconds."""
    from openai.lib.streaming.responses._responses import ResponseStreamState

    event_of: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=TOOLS, text_format=openai.omit)
    for event in rendered(answer(), CALLS):
        state.handle_event(event_of.validate_json(event.partition(b"data: ")[2]))
    return state._completed_response


def messages(items: list[Any]) -> tuple[Message, ...]:
    raw = json.dumps({"model": "tiny", "input": items, "tools": TOOLS}).encode()
    held = HeldBody(BodyBudget(1 << 30, 1))
    found = anyio.run(ResponseService(GatewaySettings()).decode, raw, held, b"").request.sequences[0].input
    assert isinstance(found, ChatInput)
    return found.messages


def test_the_client_assembles_calls_and_reasoning() -> None:
    reasoning, message, weather, time = assembled().output
    assert reasoning.content[0].text == "Let me look."
    assert message.content[0].text == "I look it up."
    assert (weather.call_id, weather.name, weather.parsed_arguments) == ("call_1", "weather", {"city": "Paris"})
    assert (time.call_id, time.name, time.arguments) == ("call_2", "time", "{}")


@pytest.mark.parametrize("encrypted", [False, True])
def test_items_of_an_answer_are_items_of_the_next_input(encrypted: bool) -> None:
    output = json.loads(whole(answer(encrypted=encrypted), CALLS))["output"]
    if encrypted:  # as clients that keep only this of the reasoning
        assert output[0].pop("content")
    user = {"role": "user", "content": "weather and time in Paris?"}
    assert messages([user, *output, *RESULTS]) == EXPECTED


def test_items_that_the_client_assembled_are_items_of_the_next_input() -> None:
    output = [item.to_dict() for item in assembled().output]
    for item in output:
        item.pop("parsed_arguments", None)  # which the client does not send
        for part in item.get("content") or ():
            part.pop("parsed", None)
    user = {"role": "user", "content": "weather and time in Paris?"}
    assert messages([user, *output, *RESULTS]) == EXPECTED


def report(token: int) -> tuple[Logprobs, ...]:
    return (Logprobs(TokenLogprob(token, -1.0, b"x")),)


HELD_BACK: list[OutputDelta] = [
    TextDelta(0, "", (1,), report(1)),
    ReasoningDelta(0, "Hm.", (2,), report(2)),
    TextDelta(0, "", (3,), report(3)),
    TextDelta(0, "I look.", (4,), report(4)),
    TextDelta(0, "", (5,), report(5)),
    ToolCallDelta(0, 0, "call_1", "weather", '{"city": ', (6,), report(6)),
    TextDelta(0, "", (7,), report(7)),
    ToolCallDelta(0, 0, "", "", '"Paris"}', (8,), report(8)),
    TextDelta(0, "", (9,), report(9)),
    ToolCallDelta(0, 1, "call_2", "time", "{}", (10,), report(10)),
    TextDelta(0, "", (11,), report(11), StopReason.TOOL_CALLS),
]
"""Steps whose text is held back are text without content, with their tokens, within whatever item."""


@pytest.mark.parametrize("streamed", [False, True])
def test_tokens_without_output_divide_no_item(streamed: bool) -> None:
    """Before: with log-probabilities, each of them ended the call that was open and began a message."""
    if streamed:
        last = rendered(answer(), HELD_BACK)[-1]
        output = json.loads(last.partition(b"data: ")[2])["response"]["output"]
    else:
        output = json.loads(whole(answer(), HELD_BACK))["output"]
    assert [each["type"] for each in output] == ["reasoning", "message", "function_call", "function_call"]
    assert [(each["name"], each["arguments"]) for each in output[2:]] == [
        ("weather", '{"city": "Paris"}'),
        ("time", "{}"),
    ]
    (text,) = output[1]["content"]
    assert (text["text"], len(text["logprobs"])) == ("I look.", 3)


def test_tokens_of_an_answer_without_output_have_their_log_probabilities() -> None:
    output = json.loads(whole(answer(), [TextDelta(0, "", (1, 2), report(1) + report(2), StopReason.END)]))["output"]
    assert [(each["text"], len(each["logprobs"])) for each in output[0]["content"]] == [("", 2)]
    last = rendered(answer(), [TextDelta(0, "", (1, 2), report(1) + report(2), StopReason.END)])[-1]
    assert json.loads(last.partition(b"data: ")[2])["response"]["output"][0]["content"] == output[0]["content"]
