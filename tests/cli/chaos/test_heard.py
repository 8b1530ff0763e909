"""What a client hears, chunk by chunk, and what is one end of an answer."""

import json
from typing import Any

import pytest

from cli.chaos.heard import Heard


def chunk(index: int, text: str, tokens: list[int], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": index, "text": text, "token_ids": tokens, "finish_reason": reason}
    return {"id": "a", "choices": [choice], "usage": None}


USAGE = {"id": "a", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}, "baton": {"continued": True}}


def hear(*values: Any) -> Heard:
    heard = Heard()
    for value in values:
        heard.event(value if isinstance(value, bytes) else json.dumps(value).encode())
    return heard


def test_chunks_add_up_to_an_answer() -> None:
    heard = hear(chunk(0, "a", [1]), chunk(0, "b", [2], "stop"), USAGE, b"[DONE]")
    assert heard.breach(1) == ""
    assert (heard.choices[0].text, heard.choices[0].ids, heard.tokens) == ("ab", [1, 2], 2)
    assert (heard.usages, heard.continued, len(heard.stamps)) == ([(3, 2)], True, 2)


def test_a_whole_answer_is_the_same_as_its_stream() -> None:
    whole = Heard()
    body = {"id": "b", "usage": USAGE["usage"], "choices": chunk(0, "ab", [1, 2], "stop")["choices"]}
    whole.whole(json.dumps(body).encode())
    assert whole.breach(1) == ""
    assert whole.same(hear(chunk(0, "a", [1]), chunk(0, "b", [2], "stop"), USAGE, b"[DONE]"))


def test_chat_content_is_text() -> None:
    delta = {"id": "a", "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}
    message = {"id": "a", "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}
    assert hear(delta).choices[0].text == hear(message).choices[0].text == "x"


@pytest.mark.parametrize("data", [b"{", b"[1]", b"\xff"])
def test_what_is_no_object_is_an_error(data: bytes) -> None:
    heard = hear(data, b"[DONE]")
    assert heard.errors[0][0] == "no_json"


@pytest.mark.parametrize(
    ("events", "said"),
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
def test_what_is_not_one_end(events: list[Any], said: str) -> None:
    assert said in hear(*events).breach(1)


def test_one_error_is_an_end() -> None:
    assert hear(chunk(0, "a", [1]), {"error": {"code": "x", "message": "y"}}, b"[DONE]").breach(1) == ""


def test_a_beginning_has_nothing_that_the_whole_has_not() -> None:
    whole = hear(chunk(0, "ab", [1, 2], "stop"))
    assert Heard().begins(whole)
    assert hear(chunk(0, "a", [1])).begins(whole)
    assert not hear(chunk(0, "b", [1])).begins(whole)
    assert not hear(chunk(0, "a", [2])).begins(whole)
    assert not hear(chunk(1, "", [])).begins(whole)


def test_the_gap_is_the_longest_that_ends_after_a_moment() -> None:
    heard = Heard(stamps=[0.0, 5.0, 6.0, 8.0])
    assert (heard.gap(), heard.gap(5.0), heard.gap(8.0)) == (5.0, 2.0, 0.0)
