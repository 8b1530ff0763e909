"""Answers of every kind of output, whole and as chunks: both say the same, in the shapes that OpenAI's client knows."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.errors import RequestError
from gateway.generation.delta import (
    OutputDelta,
    PromptDelta,
    ReasoningDelta,
    StopReason,
    TextDelta,
    TokenCounts,
    ToolCallDelta,
)
from gateway.openai import answer_schema
from gateway.openai.answer import OpenAIAnswer
from gateway.openai.fields import usage
from gateway.openai.logprobs import PART_TOKENS, CompletionLogprobs, chat_logprobs, completion_parts
from gateway.streaming.dialect import AnswerHead
from protocol.errors import ErrorCode
from protocol.events import Logprobs, PromptToken, TokenLogprob

LIKELY = (TokenLogprob(1, -0.5, b"x"),)
HEAD = AnswerHead("chatcmpl-0", 1, "tiny", "0123456789abcdef0123")
COUNTS = TokenCounts(3, 4, 2)
CHAT = OpenAIAnswer(chat=True)
CALLS: list[OutputDelta] = [
    ReasoningDelta(index=0, text="Let me "),
    ReasoningDelta(index=0, text="look."),
    TextDelta(index=0, text="I look it up."),
    ToolCallDelta(index=0, call=0, id="call_1", name="weather"),
    ToolCallDelta(index=0, call=0, arguments='{"city": "Pa'),
    ToolCallDelta(index=0, call=0, arguments='ris"}'),
    ToolCallDelta(index=0, call=1, id="call_2", name="time", arguments="{}", stop=StopReason.TOOL_CALLS),
]


def chunks(answer: OpenAIAnswer, deltas: list[OutputDelta]) -> list[dict[str, Any]]:
    """The choices of the chunks of these deltas, which come one by one."""
    events = answer.events(HEAD)
    raw = [event for delta in deltas for event in events.deltas([delta])]
    return [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in raw]


def whole(answer: OpenAIAnswer, deltas: list[OutputDelta]) -> Any:
    return json.loads(b"".join(answer.whole(HEAD, deltas, COUNTS, continued=False)))


def test_reasoning_and_tool_calls_have_chunks_of_their_own() -> None:
    found = [choice["delta"] for choice in chunks(CHAT, CALLS)]
    assert found == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Let me ", "reasoning": "Let me "},
        {"reasoning_content": "look.", "reasoning": "look."},
        {"content": "I look it up."},
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Pa'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": 'ris"}'}}]},
        {
            "tool_calls": [
                {"index": 1, "id": "call_2", "type": "function", "function": {"name": "time", "arguments": "{}"}}
            ]
        },
        {},
    ]
    assert [choice["finish_reason"] for choice in chunks(CHAT, CALLS)] == [None] * 8 + ["tool_calls"]


def test_a_call_that_is_generated_whole_ends_in_a_chunk_of_its_own() -> None:
    call = ToolCallDelta(
        index=0, call=0, id="c", name="time", arguments="{}", tokens=(1, 2), stop=StopReason.TOOL_CALLS
    )
    _, begun, ended = chunks(OpenAIAnswer(chat=True, token_ids=True), [call])
    assert (len(begun["delta"]["tool_calls"]), begun["finish_reason"], begun["token_ids"]) == (1, None, [1, 2])
    assert (ended["delta"], ended["finish_reason"], ended["token_ids"]) == ({}, "tool_calls", [])


def test_a_whole_message_has_all_of_it() -> None:
    (choice,) = whole(CHAT, CALLS)["choices"]
    assert choice == {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": "I look it up.",
            "refusal": None,
            "reasoning_content": "Let me look.",
            "reasoning": "Let me look.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
                },
                {"id": "call_2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
            ],
        },
        "logprobs": None,
        "finish_reason": "tool_calls",
    }


def test_a_message_of_tool_calls_alone_has_no_content() -> None:
    calls = [delta for delta in CALLS if isinstance(delta, ToolCallDelta)]
    assert whole(CHAT, list(calls))["choices"][0]["message"]["content"] is None
    assert whole(CHAT, [TextDelta(index=0, text="", stop=StopReason.END)])["choices"][0]["message"]["content"] == ""


def test_the_client_takes_all_of_it() -> None:
    raw = whole(CHAT, CALLS)
    msgspec.convert(raw, answer_schema.ChatCompletion)
    answer = ChatCompletion.model_validate(raw)
    assert answer.choices[0].message.tool_calls is not None
    assert [call.type for call in answer.choices[0].message.tool_calls] == ["function", "function"]
    for event in CHAT.events(HEAD).deltas(CALLS):
        ChatCompletionChunk.model_validate_json(event.removeprefix(b"data: "))


def test_tokens_are_reported_wherever_they_went() -> None:
    answer = OpenAIAnswer(chat=True, token_ids=True)
    deltas: list[OutputDelta] = [
        ReasoningDelta(index=0, text="a", tokens=(1, 2)),
        TextDelta(index=0, text="", tokens=(3,), stop=StopReason.END),
    ]
    assert [choice.get("token_ids") for choice in chunks(answer, deltas)] == [None, [1, 2], [3]]
    assert whole(answer, deltas)["choices"][0]["token_ids"] == [1, 2, 3]


@pytest.mark.parametrize("stop", StopReason)
def test_every_stop_reason_has_a_finish_reason(stop: StopReason) -> None:
    deltas: list[OutputDelta] = [TextDelta(index=0, text="a", stop=stop)]
    reasons = {StopReason.END: "stop", StopReason.LENGTH: "length", StopReason.TOOL_CALLS: "tool_calls"}
    for chat in (True, False):
        answer = OpenAIAnswer(chat=chat)
        assert chunks(answer, deltas)[-1]["finish_reason"] == reasons[stop]
        assert whole(answer, deltas)["choices"][0]["finish_reason"] == reasons[stop]


@pytest.mark.parametrize("delta", CALLS[:1] + CALLS[3:4], ids=["reasoning", "tool call"])
def test_a_completion_refuses_what_it_cannot_show(delta: OutputDelta) -> None:
    answer = OpenAIAnswer(chat=False)
    with pytest.raises(TypeError):
        chunks(answer, [delta])
    with pytest.raises(TypeError):
        whole(answer, [delta])


def test_without_a_digest_there_is_no_fingerprint() -> None:
    head = AnswerHead("cmpl-0", 1, "tiny", "")
    (event,) = OpenAIAnswer(chat=False).events(head).deltas([TextDelta(index=0, text="a")])
    assert json.loads(event.removeprefix(b"data: "))["system_fingerprint"] is None


def test_an_answer_that_fails_at_once_has_its_error_and_its_end() -> None:
    events = CHAT.events(HEAD).error(RequestError(ErrorCode.STEP, "no"))
    assert events == [
        b'data: {"error":{"message":"no","type":"server_error","param":null,"code":"step_failed"}}\n\n',
        b"data: [DONE]\n\n",
    ]


def reported(count: int) -> list[OutputDelta]:
    """Two choices of so many tokens; one character in two tokens, and texts that JSON escapes."""
    pieces = [b'"x\n', "\u00e9".encode()[:1], "\u00e9".encode()[1:], b"y"]
    tops = [TokenLogprob(index, -1.5 * index, piece) for index, piece in enumerate(pieces)]
    reports = [Logprobs(TokenLogprob(index, -0.25, pieces[index % 4]), tuple(tops)) for index in range(count)]
    tokens, text = tuple(range(count)), '"x\n\u00e9y' * count
    return [TextDelta(choice, text, tokens, tuple(reports), StopReason.LENGTH) for choice in range(2)]


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
@pytest.mark.parametrize("count", [0, 1, PART_TOKENS, PART_TOKENS + 1, 3 * PART_TOKENS])
def test_a_whole_answer_in_parts_is_the_one_that_is_encoded_at_once(chat: bool, count: int) -> None:
    deltas = reported(count)
    parts = list(OpenAIAnswer(chat=chat, logprobs=True, token_ids=True).whole(HEAD, deltas, COUNTS, continued=True))
    choices = []
    for delta in deltas:
        content: dict[str, Any] = {"text": delta.text} if isinstance(delta, TextDelta) else {}
        if chat:
            content = {"message": {"role": "assistant", "content": content["text"], "refusal": None}}
        logprobs = chat_logprobs(delta.logprobs) if chat else CompletionLogprobs().write(delta.logprobs)
        rest = {"logprobs": logprobs, "finish_reason": "length", "token_ids": delta.tokens}
        choices.append({"index": delta.index} | content | rest)
    head = {
        "id": HEAD.id,
        "object": "chat.completion" if chat else "text_completion",
        "created": HEAD.created,
        "model": HEAD.model,
        "system_fingerprint": "fp_0123456789abcdef",
    }
    assert b"".join(parts) == msgspec.json.encode(
        head | {"choices": choices, "usage": usage(COUNTS), "baton": {"continued": True}}
    )
    assert max(map(len, parts)) < 60 * (count + 10) + 500 * PART_TOKENS, "no part has the log-probabilities of all"


def test_reasoning_can_be_left_out() -> None:
    answer = OpenAIAnswer(chat=True, include_reasoning=False)
    message = json.loads(b"".join(answer.whole(HEAD, CALLS, COUNTS, continued=False)))["choices"][0]["message"]
    assert "reasoning" not in message
    assert "reasoning_content" not in message
    events = answer.events(HEAD).deltas(CALLS)
    assert not any(b"reasoning" in event for event in events)
    assert len(events) == len(CHAT.events(HEAD).deltas(CALLS)) - 2, "without chunks of nothing"


def test_an_answer_that_ends_in_reasoning_that_is_left_out_ends() -> None:
    answer = OpenAIAnswer(chat=True, include_reasoning=False)
    (_, last) = answer.events(HEAD).deltas([ReasoningDelta(0, "Hm", stop=StopReason.LENGTH)])
    choice = json.loads(last.removeprefix(b"data: "))["choices"][0]
    assert (choice["delta"], choice["finish_reason"]) == ({}, "length")


@pytest.mark.parametrize(
    ("text", "pieces", "offsets"),
    [
        pytest.param("Hi, x", (b"Hi", b",", b" x"), [0, 2, 3], id="plain"),
        pytest.param("Hi, x", (b"<s>", b"Hi", b",", b" x"), [0, 0, 2, 3], id="a token before the text"),
        pytest.param("Hi, x", (b"<s>", b" Hi", b",", b" x"), [0, 0, 2, 3], id="a space before the text"),
        pytest.param("Hi", (b"Hi", b"</s>"), [0, 2], id="a token after the text"),
        pytest.param("\u00e9!", (b"\xc3", b"\xa9", b"!"), [0, 0, 1], id="parts of a character"),
        pytest.param("a", (b"A", b"B", b"C"), [0, 0, 0], id="another text"),
    ],
)
def test_offsets_follow_the_text_of_a_prompt_and_the_answer_begins_at_its_end(
    text: str, pieces: tuple[bytes, ...], offsets: list[int]
) -> None:
    tokens = [PromptToken(at, piece, -0.5 if at else None, LIKELY if at else ()) for at, piece in enumerate(pieces)]
    writer = CompletionLogprobs(1)
    writer.write_prompt(text, ())
    written = [each for token in tokens for each in writer.write_prompt("", [token])["text_offset"]]
    assert written == offsets
    answer = [Logprobs(TokenLogprob(7, -0.5, piece)) for piece in (b"an", b"swer")]
    assert writer.write(answer)["text_offset"] == [len(text), len(text) + 2]
    together = CompletionLogprobs(1)
    together.write_prompt(text, tokens)
    assert together.write(answer)["text_offset"] == [len(text), len(text) + 2]


def test_a_prompt_has_as_many_likely_tokens_as_the_answer() -> None:
    top = tuple(TokenLogprob(each, -each / 4, bytes([97 + each])) for each in range(3))
    written = CompletionLogprobs(2).write_prompt("z", [PromptToken(9, b"z", -3.0, top)])
    assert written["top_logprobs"] == [{"z": -3.0, "a": 0.0, "b": -0.25}]


class CountedTokens(tuple[TokenLogprob, ...]):
    """Likely tokens that note each reading of all of them."""

    readings: list[None]

    def __getitem__(self, key: Any) -> Any:
        self.readings.append(None)
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[TokenLogprob]:
        self.readings.append(None)
        return super().__iter__()


def test_the_likely_tokens_of_a_completion_are_written_in_their_own_list_alone() -> None:
    """Before: they were also written for each of the three short lists, and dropped. As one piece of a body has
    thousands of tokens of a short list, a turn of the event loop took 0.2 seconds."""
    likely = CountedTokens((TokenLogprob(7, -0.5, b"x"),))
    likely.readings = []
    prompt = [PromptToken(1, b"a", -0.5, likely)] * 3
    answer = [Logprobs(TokenLogprob(7, -0.5, b"a"), likely)] * 2
    written = json.loads(b"".join(completion_parts([PromptDelta(0, "aaa", tuple(prompt))], answer, 1)))
    assert [len(written[field]) for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [5] * 4
    assert len(likely.readings) == 5


def test_the_usage_has_the_tokens_of_the_reasoning_if_there_are_any() -> None:
    assert "completion_tokens_details" not in usage(COUNTS)
    for reasoning, reported in ((1, 1), (4, 4), (9, 4)):
        found = usage(COUNTS._replace(reasoning=reasoning))
        assert found["completion_tokens_details"] == {"reasoning_tokens": reported}
        assert msgspec.convert(found, answer_schema.UsageObject).completion_tokens == 4
