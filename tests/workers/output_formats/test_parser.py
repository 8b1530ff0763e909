"""The parser of tokens: markers that are tokens, steps of any number of tokens, and stop strings."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from protocol.events import Segment
from protocol.request import FinishReason
from tests.workers.output_formats.answers import ANSWERS, Answer
from tests.workers.output_formats.marked_tokenizer import MarkedTokenizer
from tests.workers.output_formats.parsed import SCHEMAS, TOOLS, joined, plan
from workers.output_formats.parser import OutputParser
from workers.text.byte_tokenizer import ByteTokenizer

MARKERS = sorted(
    {
        marker
        for answer in ANSWERS.values()
        for marker in re.findall(
            r"<\|[^<>]*?\|?>|<[\w:]+\|>|</?(?:tool_call|think|arg_\w+)>|<｜tool[^>]*>|｜DSML｜|\[[A-Z_/]+\]",
            answer.written,
        )
    },
    key=len,
    reverse=True,
)
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


def segments(parser: OutputParser, tokens: Sequence[int], reason: FinishReason = "stop") -> list[Segment]:
    found = [segment for token in tokens for segment in parser.push(token)]
    return found + parser.finish(reason)


def of(
    tokenizer: ByteTokenizer, tools: str | None = "hermes", reasoning: str | None = None, **options: Any
) -> OutputParser:
    prompt = tokenizer.encode(options.pop("prompt", ""), special=False)
    return OutputParser(plan(tools, reasoning, tokenizer.added_tokens), tokenizer, prompt, tools=SCHEMAS, **options)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_means_the_same_with_markers_that_are_tokens(name: str, special: bool) -> None:
    answer: Answer = ANSWERS[name]
    tokenizer = MarkedTokenizer(MARKERS, special=special)
    parser = of(tokenizer, answer.tools, answer.reasoning_format, prompt=answer.prompt)
    tokens = tokenizer.encode(answer.written, special=False)
    text, reasoning, calls, _ = joined(segments(parser, tokens))
    assert [(call.name, call.decoded) for call in calls] == list(answer.calls)
    assert (text, reasoning) == (answer.text, answer.reasoning)
    assert parser.finish_reason("stop") == ("tool_calls" if answer.calls else "stop")


def test_a_marker_that_is_a_token_is_text_when_it_is_typed() -> None:
    """As in an answer about the format itself."""
    tokenizer = MarkedTokenizer(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    parser = of(tokenizer, reasoning="think")
    assert joined(segments(parser, tokenizer.typed(f"<think>{CALL}")))[::3] == (f"<think>{CALL}", "t")
    assert parser.finish_reason("stop") == "stop"


def test_a_typed_end_does_not_end_the_reasoning() -> None:
    tokenizer = MarkedTokenizer(["<think>", "</think>"])
    parser = of(tokenizer, None, "think", prompt="<think>")
    tokens = tokenizer.typed("Say </think> now.") + tokenizer.encode("</think>Done.", special=False)
    assert joined(segments(parser, tokens))[:2] == ("Done.", "Say </think> now.")


def test_a_marker_within_a_string_is_part_of_it() -> None:
    tokenizer = MarkedTokenizer(["<tool_call>", "</tool_call>"])
    tokens = tokenizer.encode(CALL.replace("Paris", "<tool_call>"), special=False)
    (call,) = joined(segments(of(tokenizer), tokens))[2]
    assert call.decoded == {"city": "<tool_call>"}


def test_markers_of_a_malformed_call_are_written_out() -> None:
    tokenizer = MarkedTokenizer(["<tool_call>", "</tool_call>"])
    parser = of(tokenizer)
    text = "<tool_call>soon</tool_call>"
    assert joined(segments(parser, tokenizer.encode(text, special=False)))[0] == text
    assert parser.malformed == ["syntax"]


def test_other_control_tokens_have_no_text() -> None:
    tokenizer = MarkedTokenizer(["<tool_call>", "<|im_end|>"])
    tokens = tokenizer.encode("a<|im_end|>b", special=False)
    assert joined(segments(of(tokenizer), tokens))[0] == "ab"


def test_an_incomplete_character_before_a_marker_is_replaced() -> None:
    tokenizer = MarkedTokenizer(["<think>", "</think>"])
    tokens = [*tokenizer.encode("<think>", special=False), 0xC3, *tokenizer.encode("</think>é", special=False), 0xC3]
    assert joined(segments(of(tokenizer, None, "think"), tokens))[:2] == ("é\ufffd", "\ufffd")


@pytest.mark.parametrize(
    ("prompt", "reasoning"),
    [
        ("<|im_start|>assistant\n<think>\n", "Hm."),
        ("<|im_start|>assistant\n<think>", "Hm."),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", ""),
        ("<|im_start|>assistant\n", ""),
        ("<think><|im_end|>\n<|im_start|>assistant\n", ""),
    ],
)
def test_the_prompt_may_have_begun_the_reasoning(prompt: str, reasoning: str) -> None:
    tokenizer = ByteTokenizer()
    found = joined(segments(of(tokenizer, None, "think", prompt=prompt), tokenizer.encode("Hm.", special=False)))
    assert found[:2] == ("" if reasoning else "Hm.", reasoning)


def test_stop_strings_are_looked_for_in_text_alone() -> None:
    tokenizer = ByteTokenizer()
    answer = f"<think>a STOP</think>b ST{CALL.replace('Paris', 'STOP')}OP c STOP d"
    parser = of(tokenizer, "hermes", "think", stops=("STOP",))
    text, reasoning, calls, order = joined(segments(parser, tokenizer.encode(answer, special=False)))
    assert (text, reasoning, order) == ("b STOP c ", "a STOP", "rtc0t"), "and not across a call"
    assert calls[0].decoded == {"city": "STOP"}
    assert parser.finish_reason("stop") == "stop", "a stop string is not the model's own end"


def test_without_parallel_calls_the_answer_ends_after_the_first() -> None:
    tokenizer = ByteTokenizer()
    parser = of(tokenizer, parallel=False)
    tokens = tokenizer.encode(f"a{CALL}{CALL}b", special=False)
    at = next(at for at, token in enumerate(tokens) if parser.push(token) and parser.stopped)
    assert bytes(tokens[: at + 1]).decode() == f"a{CALL.removesuffix('}</tool_call>')}", (
        "with the last of its arguments"
    )
    assert parser.push(tokens[at + 1]) == []
    assert parser.finish("stop") == []
    assert parser.finish_reason("stop") == "tool_calls"


@pytest.mark.parametrize("length", range(0, 120, 7))
def test_a_parser_that_took_the_tokens_before_goes_on_exactly(length: int) -> None:
    """As a worker does that continues an answer."""
    tokenizer = MarkedTokenizer(["<tool_call>", "</tool_call>", "</think>"])
    tokens = tokenizer.encode(f"Paris?</think>I see.{CALL}{CALL}", special=False)
    whole = joined(segments(of(tokenizer, reasoning="think", prompt="<think>"), tokens))
    first, again = (of(tokenizer, reasoning="think", prompt="<think>") for _ in range(2))
    before = [segment for token in tokens[:length] for segment in first.push(token)]
    for token in tokens[:length]:
        again.push(token)
    assert joined(before + segments(again, tokens[length:])) == whole


def test_the_tools_of_a_request_are_read_in_openai_form() -> None:
    assert SCHEMAS.names == {each["function"]["name"] for each in TOOLS}
    assert SCHEMAS.types("get_weather", "note") == ("string", "null")
    assert SCHEMAS.types("get_weather", "either") == ("integer", "string")
    assert SCHEMAS.types("get_weather", "unknown") is SCHEMAS.types("unknown", "city") is None
