"""Bounds of what a worker may send of its sequences: frames and times in, verdicts out."""

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from actors.supervision.asked_sequence import HELD_BACK, PeerLied
from actors.supervision.output_check import ANSWER_S, OutputCheck
from protocol.bounds import MAX_PIECE_BYTES, PROTOCOL_VERSION
from protocol.commands import Cancel, LoadAdapter, ReadRows, Submit, Tokenize, UnloadAdapter, WriteRows
from protocol.errors import ErrorCode
from protocol.events import (
    AdapterChanged,
    Capabilities,
    Delta,
    Event,
    Failed,
    Finished,
    Gauges,
    Heartbeat,
    Hello,
    Loading,
    Logprobs,
    PromptLogprobs,
    PromptToken,
    Ready,
    ReasoningSegment,
    Rows,
    RowsWritten,
    Segment,
    StartedStream,
    Step,
    TextSegment,
    Tokenized,
    TokenLogprob,
    ToolCallSegment,
    Usage,
)
from protocol.request import (
    ChatInput,
    Grammar,
    Limits,
    Message,
    Sampling,
    TextInput,
    TokensInput,
    ToolChoice,
)

HANG_S = 10.0
CONTEXT = 1000
HELLO = Hello(PROTOCOL_VERSION, "w", 1, 7, "m", "b", "d", 4, CONTEXT)


def asked(
    *,
    resume: int = 0,
    logprobs: int | None = None,
    prompt: TokensInput | TextInput | ChatInput | None = None,
    prompt_logprobs: int | None = None,
    grammar: Grammar | None = None,
    **limits: Any,
) -> OutputCheck:
    """A worker that got stream 1."""
    check = OutputCheck()
    check.check(HELLO, 0.0)
    sampling = Sampling(logprobs=logprobs)
    given_prompt = prompt or TokensInput((5, 6))
    submit = Submit(1, "r", given_prompt, sampling, Limits(**limits), (9,) * resume, grammar=grammar)
    check.sent([structs.replace(submit, prompt_logprobs=prompt_logprobs)], 0.0)
    return check


def delta(count: int = 1, text: str = "", logprobs: tuple[Logprobs, ...] = ()) -> Step:
    return Step((Delta(1, (65,) * count, text, logprobs),))


def with_tools(mode: Literal["none", "required"]) -> ChatInput:
    tools = '[{"type": "function", "function": {"name": "f"}}]'
    return structs.replace(chat(choice=ToolChoice(mode)), tools_json=tools)


def chat(*, tools: bool = True, reasoning: bool = True, choice: ToolChoice | None = None) -> ChatInput:
    return ChatInput(
        (Message("user", "hi"),),
        tool_choice=choice or ToolChoice(),
        parse_tools=tools,
        parse_reasoning=reasoning,
    )


def parsed(*segments: Segment) -> Step:
    return Step((Delta(1, (65,), segments=segments),))


def finished(reason: Any, completion: int, prompt: int = 2, text: str = "", cached: int = 0) -> Finished:
    return Finished(1, reason, Usage(prompt, completion, cached_tokens=cached), (), text)


def of_prompt(start: int, *tokens: int, top: int = 0) -> PromptLogprobs:
    """A part of the prompt from this position on."""
    each = TokenLogprob(65, -1.0, b"A")
    parts = [
        PromptToken(token, b"t", None if position == 0 else -0.5, (each,) * (top if position else 0))
        for position, token in enumerate(tokens, start)
    ]
    return PromptLogprobs(1, start, tuple(parts))


def stopped(completion: int, stop: str | int) -> Finished:
    return structs.replace(finished("stop", completion), stop=stop)


def likely(count: int, piece: bytes = b"A", token: int = 65) -> Logprobs:
    each = TokenLogprob(token, -1.0, piece)
    return Logprobs(each, (each,) * count)


LONG = "x" * (MAX_PIECE_BYTES + HELD_BACK)
HONEST: dict[str, tuple[OutputCheck, list[Event]]] = {
    "all tokens": (asked(max_tokens=3), [delta(2, "ab"), delta(1, "c"), finished("length", 3)]),
    "an end of sequence": (asked(), [delta(2, "ab"), finished("stop", 2)]),
    "a stop token": (asked(stop_ids=(5,), ignore_eos=True), [delta(2), finished("stop", 2)]),
    "a stop token after min_tokens": (
        asked(stop_ids=(5,), ignore_eos=True, min_tokens=2),
        [delta(2), finished("stop", 2)],
    ),
    "a stop string before min_tokens": (asked(stop=("ab",), min_tokens=9), [delta(2), finished("stop", 2)]),
    "the end of a grammar": (
        asked(grammar=Grammar("json_object"), ignore_eos=True, min_tokens=9),
        [delta(2), finished("stop", 2)],
    ),
    "an end of the reasoning that is a bad word": (
        asked(prompt=chat(), reasoning_tokens=0, ignore_eos=True, min_tokens=9),
        [delta(2), finished("stop", 2)],
    ),
    "the end of a forced call": (
        asked(prompt=with_tools("required"), ignore_eos=True, min_tokens=9),
        [parsed(ToolCallSegment(0, "f", "{}")), finished("tool_calls", 1)],
    ),
    "the end of the context": (asked(), [delta(CONTEXT - 2), finished("length", CONTEXT - 2)]),
    "text of the longest token": (asked(), [delta(1, LONG), finished("stop", 1)]),
    "text that was held back": (asked(stop=("x" * 256,)), [delta(1), finished("stop", 1, text="x" * 255)]),
    "resumed tokens": (asked(resume=2, max_tokens=3), [delta(1, "c"), finished("length", 3)]),
    "nothing left to resume": (asked(resume=3, max_tokens=3), [finished("length", 3)]),
    "log-probabilities": (asked(logprobs=2), [delta(2, "ab", (likely(2), likely(0))), finished("stop", 2)]),
    "a stop string that matched": (asked(stop=("ab",)), [delta(2), stopped(2, "ab")]),
    "a stop token that came": (asked(stop_ids=(65,)), [delta(2), stopped(2, 65)]),
    "no token": (asked(max_tokens=0), [finished("length", 0)]),
    "a prompt": (
        asked(prompt_logprobs=1),
        [of_prompt(0, 5), of_prompt(1, 6, top=1), delta(1), finished("stop", 1)],
    ),
    "a prompt alone": (asked(prompt_logprobs=0, max_tokens=0), [of_prompt(0, 5, 6), finished("length", 0)]),
    "a prompt of text": (
        asked(prompt_logprobs=0, prompt=TextInput("hi")),
        [of_prompt(0, 7, 8, 9), delta(1), finished("stop", 1, prompt=3)],
    ),
    "a resumed prompt": (asked(prompt_logprobs=1, resume=1), [delta(1), finished("stop", 2)]),
    "a prompt that fails": (asked(prompt_logprobs=1), [of_prompt(0, 5), Failed(1, ErrorCode.STEP, "no")]),
    "reused rows": (asked(resume=2), [finished("stop", 2, cached=4)]),
    "an unknown prompt": (asked(prompt=TextInput("hi")), [delta(1), finished("stop", 1, prompt=77)]),
    "parsed output": (
        asked(prompt=chat()),
        [
            parsed(ReasoningSegment("Hm."), TextSegment("So:"), ToolCallSegment(0, "f", "{")),
            parsed(ToolCallSegment(0, arguments="}"), ToolCallSegment(1, "g", "{}")),
            delta(1, "Done."),
            finished("tool_calls", 3),
        ],
    ),
    "the rest of a call": (
        asked(prompt=chat(), resume=2),
        [parsed(ToolCallSegment(3, arguments="}")), parsed(ToolCallSegment(4, "g")), finished("tool_calls", 4)],
    ),
    "the next call": (asked(prompt=chat(), resume=2), [parsed(ToolCallSegment(4, "g")), finished("stop", 3)]),
    "calls before the worker's time": (asked(prompt=chat(), resume=2), [finished("tool_calls", 2)]),
    "one call": (
        asked(prompt=chat(choice=ToolChoice(parallel=False)), ignore_eos=True),
        [parsed(ToolCallSegment(0, "f", "{}")), finished("tool_calls", 1)],
    ),
    "a failure": (asked(), [delta(1), Failed(1, ErrorCode.STEP, "no")]),
    "a deadline": (asked(deadline_ms=5), [Failed(1, ErrorCode.DEADLINE, "late")]),
}


@pytest.mark.parametrize(("check", "events"), HONEST.values(), ids=HONEST)
def test_what_was_asked_for_passes_and_nothing_after_it(check: OutputCheck, events: list[Event]) -> None:
    for event in events:
        check.check(event, 1.0)
    for late in (delta(1), finished("stop", 1), Failed(1, ErrorCode.STEP, "no")):
        with pytest.raises(PeerLied, match="stream 1 is not one that it has"):
            check.check(late, 2.0)


LIES: dict[str, tuple[OutputCheck, Event, str]] = {
    "a stream it was not given": (asked(), Step((Delta(2, (65,)),)), "stream 2 is not one"),
    "no token": (asked(), delta(0, "text"), "a delta without a token"),
    "a token too many": (asked(max_tokens=3), delta(4), "more than the 3 tokens"),
    "a resumed token too many": (asked(max_tokens=3, resume=2), delta(2), "more than the 3 tokens"),
    "more than the context": (asked(), delta(CONTEXT + 1), "more than the 1000 tokens"),
    "too much text": (asked(), delta(1, LONG + "x"), "1289 characters of text in 1 tokens"),
    "too much text at the end": (asked(resume=1), finished("stop", 1, text=LONG + "x"), "characters of text"),
    "log-probabilities": (asked(), delta(1, "", (likely(0),)), "not asked for"),
    "no log-probabilities": (asked(logprobs=0), delta(1), "of other tokens"),
    "one log-probability too many": (asked(logprobs=0), delta(1, "", (likely(0),) * 2), "of other tokens"),
    "of another token": (asked(logprobs=0), delta(1, "", (likely(0, token=66),)), "of other tokens"),
    "too many likely ones": (asked(logprobs=2), delta(1, "", (likely(3),)), "3 most likely tokens, 2 asked for"),
    "cancelled": (asked(), finished("cancelled", 0), "cancelled unasked"),
    "length too early": (asked(max_tokens=3), finished("length", 0), "after 0 of 3 tokens"),
    "stopped by nothing, with a stop token": (
        asked(ignore_eos=True, stop_ids=(5,), min_tokens=4, resume=3),
        finished("stop", 3),
        "nothing may stop it",
    ),
    "stopped by nothing": (asked(ignore_eos=True, resume=3), finished("stop", 3), "nothing may stop it"),
    "stopped by tools that may not be called": (
        asked(prompt=with_tools("none"), ignore_eos=True, resume=3),
        finished("stop", 3),
        "nothing may stop it",
    ),
    "stopped too early": (asked(min_tokens=3, resume=2), finished("stop", 2), "nothing may stop it"),
    "more tokens than came": (asked(), finished("stop", 1), "ended with 1 tokens, and 0 came"),
    "fewer tokens than came": (asked(resume=2), finished("stop", 1), "ended with 1 tokens, and 2 came"),
    "another prompt": (asked(), finished("stop", 0, prompt=3), "3 tokens of its prompt"),
    "an endless prompt": (asked(prompt=TextInput("hi")), finished("stop", 0, prompt=CONTEXT + 1), "of its prompt"),
    "an endless cache": (asked(), finished("stop", 0, cached=3), "3 cached tokens"),
    "segments unasked": (asked(), parsed(TextSegment("a")), "segments that were not asked for"),
    "reasoning unasked": (asked(prompt=chat(reasoning=False)), parsed(ReasoningSegment("a")), "reasoning"),
    "a call unasked": (asked(prompt=chat(tools=False)), parsed(ToolCallSegment(0, "f")), "a tool call that was not"),
    "a call in spite of the choice": (
        asked(prompt=chat(choice=ToolChoice("none"))),
        parsed(ToolCallSegment(0, "f")),
        "a tool call that was not",
    ),
    "text beside segments": (
        asked(prompt=chat()),
        Step((Delta(1, (65,), "a", segments=(TextSegment("b"),)),)),
        "text beside segments",
    ),
    "a call left out": (asked(prompt=chat()), parsed(ToolCallSegment(1, "f")), "a part of call 1 after call -1"),
    "a call without a name": (asked(prompt=chat()), parsed(ToolCallSegment(0)), "a part of call 0 after call -1"),
    "a second name": (
        asked(prompt=chat()),
        parsed(ToolCallSegment(0, "f"), ToolCallSegment(0, "f")),
        "a part of call 0 after call 0",
    ),
    "an earlier call": (
        asked(prompt=chat()),
        parsed(ToolCallSegment(0, "f"), ToolCallSegment(1, "f"), ToolCallSegment(0, arguments="}")),
        "a part of call 0 after call 1",
    ),
    "an impossible call": (
        asked(prompt=chat(), resume=1),
        parsed(ToolCallSegment(0, "f"), ToolCallSegment(0, "f")),
        "0",
    ),
    "a second call": (
        asked(prompt=chat(choice=ToolChoice(parallel=False))),
        parsed(ToolCallSegment(0, "f"), ToolCallSegment(1, "f")),
        "a second tool call",
    ),
    "too many arguments": (
        asked(prompt=chat()),
        parsed(ToolCallSegment(0, "f", LONG), ToolCallSegment(0, arguments=LONG)),
        "characters of text in 1 tokens",
    ),
    "tool calls without any": (asked(prompt=chat()), finished("tool_calls", 0), "got none that were asked for"),
    "tool calls unasked": (asked(resume=1), finished("tool_calls", 1), "got none that were asked for"),
    "tool calls too early": (
        asked(prompt=chat(), resume=1, min_tokens=3),
        finished("tool_calls", 1),
        "nothing may stop it",
    ),
    "a stop string unasked": (asked(stop=("ab",)), stopped(0, "b"), "a stop that was not asked for"),
    "a stop token unasked": (asked(stop=("65",)), stopped(0, 65), "a stop that was not asked for"),
    "a stop beside the length": (
        asked(stop=("ab",), max_tokens=0),
        structs.replace(finished("length", 0), stop="ab"),
        "its length and at a stop",
    ),
    "a token where none was asked for": (asked(max_tokens=0), delta(1), "more than the 0 tokens"),
    "a prompt unasked": (asked(), of_prompt(0, 5, 6), "prompt that were not asked for"),
    "a prompt again": (asked(resume=1, prompt_logprobs=1), of_prompt(0, 5, 6), "prompt that were not asked for"),
    "a gap in the prompt": (asked(prompt_logprobs=1), of_prompt(1, 6), "from token 1, after 0 tokens"),
    "a longer prompt": (asked(prompt_logprobs=1), of_prompt(0, 5, 6, 7), "more than the 2 tokens of its prompt"),
    "a prompt over the context": (
        asked(prompt_logprobs=1, prompt=TextInput("x")),
        of_prompt(0, *(7,) * (CONTEXT + 1)),
        "more than the 1000 tokens",
    ),
    "another prompt's tokens": (asked(prompt_logprobs=1), of_prompt(0, 5, 7), "of another prompt"),
    "too many likely ones in the prompt": (
        asked(prompt_logprobs=1),
        of_prompt(0, 5, 6, top=2),
        "2 most likely tokens, 1 asked for",
    ),
    "a log-probability of the first token": (
        asked(prompt_logprobs=1),
        PromptLogprobs(1, 0, (PromptToken(5, b"t", -0.5),)),
        "token 0 has the log-probability -0.5",
    ),
    "none of the second token": (
        asked(prompt_logprobs=1),
        PromptLogprobs(1, 0, (PromptToken(5, b"t"), PromptToken(6, b"t"))),
        "token 1 has the log-probability None",
    ),
    "output before the prompt": (asked(prompt_logprobs=1), delta(1), "got output after .* 0 tokens"),
    "the end before the prompt": (
        asked(prompt_logprobs=1, max_tokens=0),
        finished("length", 0),
        "of 0 of 2 tokens of its prompt",
    ),
    "quarantined": (asked(), Failed(1, ErrorCode.QUARANTINED, "no"), "quarantined"),
    "a deadline that was not set": (asked(), Failed(1, ErrorCode.DEADLINE, "no"), "deadline_exceeded"),
    "more slots": (asked(), Heartbeat(Gauges(slots_active=5)), "5 of its 4 slots"),
    "control characters": (asked(), Ready(Capabilities(), device="a\x1b[2J"), "Ready has a label"),
    "control characters as it loads": (asked(), Loading("a\nb"), "Loading has a label"),
}


@pytest.mark.parametrize(("check", "event", "text"), LIES.values(), ids=LIES)
def test_a_lie_is_refused_by_what_is_wrong_with_it(check: OutputCheck, event: Event, text: str) -> None:
    with pytest.raises(PeerLied, match=text):
        check.check(event, 1.0)


def test_a_prompt_comes_in_order_and_before_the_answer() -> None:
    text = TextInput("hi")
    check = asked(prompt_logprobs=0, prompt=text)
    check.check(of_prompt(0, 5, 6), 1.0)
    with pytest.raises(PeerLied, match="from token 1, after 2 tokens"):
        check.check(of_prompt(1, 6), 1.0)
    check.check(delta(1), 2.0)
    with pytest.raises(PeerLied, match="after its answer began"):
        check.check(of_prompt(2, 7), 2.0)
    with pytest.raises(PeerLied, match="of 2 of 3 tokens of its prompt"):
        check.check(finished("stop", 1, prompt=3), 3.0)
    cancelled = asked(prompt_logprobs=0, prompt=text)
    cancelled.sent([Cancel(1)], 0.0)
    cancelled.check(finished("cancelled", 0), 1.0)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100_000)), min_size=1, max_size=50))
def test_no_answer_has_more_text_than_its_tokens_allow(parts: list[tuple[int, int]]) -> None:
    """However it is split: the bound is on the sum."""
    check, tokens, chars = asked(max_tokens=CONTEXT), 0, 0
    for count, size in parts:
        try:
            check.check(delta(count, "x" * size), 1.0)
        except PeerLied:
            break
        tokens, chars = tokens + count, chars + size
    assert chars <= HELD_BACK + MAX_PIECE_BYTES * tokens


def test_a_request_can_choose_the_longest_token_for_its_whole_answer() -> None:
    """By its logit bias. Before: its worker was dropped after a hundred of them, and then the next one."""
    check = asked(logprobs=1)
    long = likely(1, piece=b"x" * MAX_PIECE_BYTES)
    for _ in range(CONTEXT - 2):
        check.check(delta(1, "x" * MAX_PIECE_BYTES, (long,)), 1.0)
    check.check(finished("length", CONTEXT - 2), 1.0)


def test_a_cancelled_sequence_ends_as_it_likes_and_in_time() -> None:
    check = asked(max_tokens=3)
    check.sent([Cancel(1), Cancel(7)], 5.0)
    check.check(delta(1), 6.0)
    assert check.overdue(4.9 + HANG_S + ANSWER_S, HANG_S) is None
    assert check.overdue(5.0 + HANG_S + ANSWER_S, HANG_S) == "no end of a cancelled sequence for 40 s"
    check.check(finished("cancelled", 0), 7.0)
    assert check.overdue(1e9, HANG_S) is None


def test_a_sequence_with_all_its_tokens_ends_in_time() -> None:
    check = asked(max_tokens=3)
    check.check(delta(3), 5.0)
    assert check.overdue(4.9 + HANG_S + ANSWER_S, HANG_S) is None
    assert "all its tokens" in str(check.overdue(5.0 + HANG_S + ANSWER_S, HANG_S))
    check.check(finished("length", 3), 7.0)
    assert check.overdue(1e9, HANG_S) is None


@pytest.mark.parametrize("code", [ErrorCode.LOST, ErrorCode.DRAINING])
def test_a_worker_that_announces_its_end_ends(code: ErrorCode) -> None:
    check = asked()
    check.check(Failed(1, code, "it ends"), 5.0)
    assert check.overdue(4.9 + HANG_S + ANSWER_S, HANG_S) is None
    assert "announced" in str(check.overdue(5.0 + HANG_S + ANSWER_S, HANG_S))


def test_a_worker_of_unknown_context_is_held_to_what_was_asked_for() -> None:
    check = OutputCheck()
    check.sent([Submit(1, "r", TextInput("hi"), Sampling(), Limits(max_tokens=3))], 0.0)
    check.check(delta(3), 1.0)
    with pytest.raises(PeerLied):
        check.check(delta(1), 1.0)


def queried(want: str) -> OutputCheck:
    """A worker that got query 7."""
    check = OutputCheck()
    check.check(HELLO, 0.0)
    check.sent([Tokenize(7, "r", TextInput("x"), want)], 0.0)  # type: ignore[arg-type]
    return check


@pytest.mark.parametrize(
    ("want", "answer"),
    [
        ("count", Tokenized(7, 5)),
        ("tokens", Tokenized(7, 2, (1, 2))),
        ("text", Tokenized(7, text="x")),
        ("tokens", Tokenized(7, text="no", code=ErrorCode.INVALID)),
    ],
)
def test_a_query_is_answered_once(want: str, answer: Tokenized) -> None:
    check = queried(want)
    check.check(answer, 0.0)
    with pytest.raises(PeerLied, match="query 7 is not one that it has"):
        check.check(answer, 0.0)


@pytest.mark.parametrize(
    ("want", "answer"),
    [
        ("count", Tokenized(8, 5)),
        ("count", Tokenized(7, 2, (1, 2))),
        ("text", Tokenized(7, 2, (1, 2), "x")),
        ("tokens", Tokenized(7, 3, (1, 2))),
        ("tokens", Tokenized(7, 2, (1, 2), "x")),
        ("tokens", Tokenized(7, 2, (1, 2), "no", ErrorCode.INVALID)),
    ],
    ids=["another", "tokens", "tokens with the text", "count", "text", "failed with tokens"],
)
def test_an_answer_has_what_was_asked_for(want: str, answer: Tokenized) -> None:
    with pytest.raises(PeerLied, match="query"):
        queried(want).check(answer, 0.0)


def test_a_first_token_is_reported_once_and_of_a_sequence_that_it_has() -> None:
    check = asked(max_tokens=9)
    check.check(structs.replace(delta(), started=(StartedStream(1, 5, 6, 7),)), 0.0)
    with pytest.raises(PeerLied, match="stream 1 started twice"):
        check.check(structs.replace(delta(), started=(StartedStream(1),)), 0.0)
    with pytest.raises(PeerLied, match="stream 2 is not one that it has"):
        check.check(structs.replace(delta(), started=(StartedStream(2),)), 0.0)


ROWS_ASKED = ReadRows(7, 1, 1, start=10, most=4)
ROWS_GIVEN = WriteRows(8, 1, "", 10, (5, 6), bytes(8), bytes(16))
STATE_ASKED = ReadRows(10, 1, 1, start=10, most=4, state=True)
STATE_GIVEN = WriteRows(11, 1, "", 10, (), bytes(8), bytes(16), 30)


def with_rows() -> OutputCheck:
    """A worker with four bytes a row, which was asked for rows and given some."""
    check = asked()
    check.check(Ready(Capabilities(), rows_format="f", row_bytes=4), 0.0)
    check.sent([ROWS_ASKED, ROWS_GIVEN, STATE_ASKED, STATE_GIVEN], 0.0)
    return check


@pytest.mark.parametrize(
    "answer",
    [
        Rows(7),
        Rows(7, held=10),
        Rows(7, held=12, tokens=(1, 2), rows=bytes(8)),
        Rows(7, held=99, tokens=(1, 2, 3, 4), rows=bytes(16)),
        RowsWritten(8, 12),
        RowsWritten(8, text="no room"),
        Rows(10),
        Rows(10, held=12, rows=bytes(4), state=14),
        RowsWritten(11, 30),
        RowsWritten(11, text="no rows"),
    ],
)
def test_answers_about_rows_are_taken_once(answer: Rows | RowsWritten) -> None:
    check = with_rows()
    check.check(answer, 0.0)
    with pytest.raises(PeerLied, match=f"query {answer.query}"):
        check.check(answer, 0.0)


@pytest.mark.parametrize("asked", [LoadAdapter(7, "sql@1", 1, ("/a",), "1"), UnloadAdapter(7, "sql@1")])
def test_answers_about_adapters_are_taken_once(asked: LoadAdapter | UnloadAdapter) -> None:
    check = OutputCheck()
    check.sent([asked], 0.0)
    check.check(AdapterChanged(7), 0.0)
    with pytest.raises(PeerLied, match="query 7 did not ask it to change an adapter"):
        check.check(AdapterChanged(7), 0.0)


@pytest.mark.parametrize(
    "answer",
    [
        Rows(8),
        Rows(9),
        Rows(7, held=99, tokens=(1, 2, 3, 4, 5), rows=bytes(20)),
        Rows(7, held=11, tokens=(1, 2), rows=bytes(8)),
        Rows(7, held=99, tokens=(1, 2), rows=bytes(9)),
        Rows(7, held=99, rows=bytes(4)),
        Rows(7, held=CONTEXT + 1),
        RowsWritten(7),
        RowsWritten(8, 11),
        RowsWritten(9, 12),
        Rows(10, held=12, rows=bytes(5), state=20),
        Rows(10, held=12, rows=bytes(4), state=13),
        Rows(10, held=12, tokens=(1,), rows=bytes(4), state=20),
        Rows(10, held=CONTEXT + 1, rows=bytes(4), state=20),
        RowsWritten(11, 10),
        Tokenized(7, 1),
        AdapterChanged(7),
    ],
)
def test_rows_that_were_not_asked_for_are_a_lie(answer: Rows | RowsWritten | Tokenized | AdapterChanged) -> None:
    with pytest.raises(PeerLied, match="query"):
        with_rows().check(answer, 0.0)
