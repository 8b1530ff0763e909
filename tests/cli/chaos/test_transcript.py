"""Transcripts: recorded events, and correct ends."""

import json
from typing import Any

import pytest

from cli.chaos.transcript import Transcript


def chunk(index: int, text: str, tokens: list[int], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": index, "text": text, "token_ids": tokens, "finish_reason": reason}
    return {"id": "a", "choices": [choice], "usage": None}


USAGE = {"id": "a", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}, "baton": {"continued": True}}


def received(*values: Any) -> Transcript:
    transcript = Transcript()
    for value in values:
        transcript.add_event(value if isinstance(value, bytes) else json.dumps(value).encode())
    return transcript


def test_chunks_add_up_to_an_answer() -> None:
    transcript = received(chunk(0, "a", [1]), chunk(0, "b", [2], "stop"), USAGE, b"[DONE]")
    assert transcript.violation(1) == ""
    assert (transcript.choices[0].text, transcript.choices[0].ids, transcript.tokens) == ("ab", [1, 2], 2)
    assert (transcript.usages, transcript.continued, len(transcript.stamps)) == ([(3, 2)], True, 2)


def test_an_answer_that_is_not_streamed_equals_its_stream() -> None:
    whole = Transcript()
    body = {"id": "b", "usage": USAGE["usage"], "choices": chunk(0, "ab", [1, 2], "stop")["choices"]}
    whole.add_body(json.dumps(body).encode())
    assert whole.violation(1) == ""
    assert whole.same(received(chunk(0, "a", [1]), chunk(0, "b", [2], "stop"), USAGE, b"[DONE]"))


def test_chat_content_is_text() -> None:
    delta = {"id": "a", "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}
    message = {"id": "a", "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}
    assert received(delta).choices[0].text == received(message).choices[0].text == "x"


@pytest.mark.parametrize("data", [b"{", b"[1]", b"\xff"])
def test_data_that_is_not_an_object_is_an_error(data: bytes) -> None:
    transcript = received(data, b"[DONE]")
    assert transcript.errors[0][0] == "no_json"


@pytest.mark.parametrize(
    ("events", "violation"),
    [
        pytest.param([chunk(0, "a", [1], "stop"), USAGE], "0 ends", id="no end"),
        pytest.param([chunk(0, "a", [1], "stop"), USAGE, b"[DONE]", b"[DONE]"], "2 ends", id="two ends"),
        pytest.param([chunk(0, "a", [1], "stop"), b"[DONE]", USAGE], "1 events after", id="late"),
        pytest.param(
            [chunk(0, "", [], "stop"), chunk(0, "", [], "stop"), USAGE, b"[DONE]"], "{0: 2}", id="two reasons"
        ),
        pytest.param([chunk(1, "a", [1], "stop"), USAGE, b"[DONE]"], "{1: 1}", id="another choice"),
        pytest.param([chunk(0, "a", [1], "stop"), b"[DONE]"], "0 usages", id="no usage"),
        pytest.param([{"error": {"code": "x", "message": "y"}}] * 2 + [b"[DONE]"], "2 errors", id="two errors"),
    ],
)
def test_an_incorrect_end_is_described(events: list[Any], violation: str) -> None:
    assert violation in received(*events).violation(1)


def test_one_error_is_a_correct_end() -> None:
    assert received(chunk(0, "a", [1]), {"error": {"code": "x", "message": "y"}}, b"[DONE]").violation(1) == ""


def test_a_prefix_has_nothing_that_the_whole_answer_lacks() -> None:
    whole = received(chunk(0, "ab", [1, 2], "stop"))
    assert Transcript().is_prefix_of(whole)
    assert received(chunk(0, "a", [1])).is_prefix_of(whole)
    assert not received(chunk(0, "b", [1])).is_prefix_of(whole)
    assert not received(chunk(0, "a", [2])).is_prefix_of(whole)
    assert not received(chunk(1, "", [])).is_prefix_of(whole)


def test_the_gap_is_the_longest_that_ends_after_a_moment() -> None:
    transcript = Transcript(stamps=[0.0, 5.0, 6.0, 8.0])
    assert (transcript.gap(), transcript.gap(5.0), transcript.gap(8.0)) == (5.0, 2.0, 0.0)
