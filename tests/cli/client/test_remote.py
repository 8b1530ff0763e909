"""The client of a server, with scripted responses."""

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from cli.client.model_client import ModelRequest, Summary
from cli.client.remote import RemoteClient
from cli.config.errors import CommandFailed
from gateway.generation.delta import ReasoningDelta, ToolCallDelta
from protocol.request import Bias, Limits, Message, Sampling

ASK = ModelRequest(
    Sampling(temperature=0.5, seed=7, presence_penalty=0.5, logit_bias=(Bias(5, -100.0),)),
    Limits(max_tokens=3, stop=("\n",), ignore_eos=True, min_tokens=2),
    prompt="One",
)
CHAT = ModelRequest(Sampling(), Limits(), messages=(Message("user", "Hi"),))


def answers(respond: Callable[[httpx.Request], httpx.Response]) -> RemoteClient:
    return RemoteClient(httpx.Client(base_url="http://server", transport=httpx.MockTransport(respond)), "tiny")


def events(*chunks: object, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join(lines + ["data: [DONE]\n\n"] * done).encode()


def test_a_completion_is_streamed_and_summarized() -> None:
    asked: list[dict[str, object]] = []

    def respond(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/completions"
        asked.append(json.loads(request.content))
        return httpx.Response(
            200,
            content=events(
                {"choices": [{"text": " two"}]},
                {"choices": [{"text": " three", "finish_reason": "length"}]},
                {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 3}},
            ),
        )

    *pieces, summary = answers(respond).stream(ASK)
    assert pieces == [" two", " three"]
    assert isinstance(summary, Summary)
    assert (summary.prompt_tokens, summary.completion_tokens, summary.reason) == (1, 3, "length")
    assert asked == [
        {
            "model": "tiny",
            "prompt": "One",
            "stream": True,
            "stream_options": {"include_usage": True, "resume_s": 60.0},
            "temperature": 0.5,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "seed": 7,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "logit_bias": {"5": -100.0},
            "min_tokens": 2,
            "max_tokens": 3,
            "stop": ["\n"],
            "ignore_eos": True,
        }
    ]


def test_a_chat_is_streamed() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/chat/completions"
        assert json.loads(request.content)["messages"] == [{"role": "user", "content": "Hi"}]
        chunks = events({"choices": [{"delta": {"role": "assistant"}}]}, {"choices": [{"delta": {"content": "Hello"}}]})
        return httpx.Response(200, content=b": a comment\n\n" + chunks)

    assert next(iter(answers(respond).stream(CHAT))) == "Hello"


def test_reasoning_and_tool_calls_are_pieces_under_every_usual_form() -> None:
    deltas: list[dict[str, object]] = [
        {"reasoning": "One."},
        {"reasoning_content": "Two.", "content": None},
        {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}, {"index": None, "id": "x"}]},
    ]
    content = events(*({"choices": [{"delta": delta}]} for delta in deltas))
    *pieces, _ = answers(lambda _: httpx.Response(200, content=content)).stream(CHAT)
    assert pieces == [
        ReasoningDelta(0, "One."),
        ReasoningDelta(0, "Two."),
        ToolCallDelta(0, 0, "", "f", "{}"),
        ToolCallDelta(0, 1, "x"),
    ]


@pytest.mark.parametrize(
    ("response", "sentence"),
    [
        (httpx.Response(429, json={"error": {"message": "come back"}}), r"refused \(429\): come back"),
        (httpx.Response(502, text="<html>bad gateway"), r"refused \(502\): <html>bad gateway"),
        (httpx.Response(200, content=events({"error": {"message": "worker lost"}})), "server says: worker lost"),
        (httpx.Response(200, content=events({"choices": []}, done=False)), "ended the answer early"),
        (httpx.Response(200, content=b"data: {\n\n"), "is not JSON"),
        (httpx.Response(200, content=b"data: []\n\n"), "is not an object"),
        (httpx.Response(200, content=events({"choices": None}, {"choices": [5]})), "not one of OpenAI's API"),
        (
            httpx.Response(200, content=events({"choices": [{"delta": {"tool_calls": ["f"]}}]})),
            "not one of OpenAI's API",
        ),
    ],
    ids=[
        "refused",
        "not-ours",
        "error-event",
        "truncated",
        "not-json",
        "not-an-object",
        "no-choice",
        "no-tool-call",
    ],
)
def test_every_failure_is_a_command_error(response: httpx.Response, sentence: str) -> None:
    with pytest.raises(CommandFailed, match=sentence):
        list(answers(lambda _: response).stream(ASK))


def test_a_connection_that_breaks_is_a_command_error() -> None:
    class Cut(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield events({"choices": [{"text": " two"}]}, done=False)
            raise httpx.ReadError("connection reset")

    pieces = answers(lambda _: httpx.Response(200, stream=Cut())).stream(ASK)
    assert next(pieces) == " two"
    with pytest.raises(CommandFailed, match="the server went away: connection reset"):
        next(pieces)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:1", "http://127.0.0.1:1/v1/"])
def test_an_unreachable_server_is_a_command_error(url: str) -> None:
    with pytest.raises(
        CommandFailed, match=r"no server answers at http://127\.0\.0\.1:1: .*`baton serve` starts one"
    ) as error:
        RemoteClient.connect(url)
    assert "Errno" not in str(error.value)


def test_the_summary_line_counts_the_speed_after_the_first_token() -> None:
    line = Summary(5, 11, "stop", first_s=0.5, total_s=1.5).line()
    assert line == "5 prompt tokens, 11 generated (stop); first token after 500 ms, then 10.0 tokens/s"
    assert "0.0 tokens/s" in Summary(5, 1, "length", 0.5, 0.5).line()


def test_the_summary_of_text_in_chunks_has_no_rate_after_the_first() -> None:
    line = Summary(5, 11, "stop", first_s=0.5, total_s=0.55, by_token=False).line()
    assert line == "5 prompt tokens, 11 generated (stop); first text after 500 ms, 20.0 tokens/s in all"
    assert "0.0 tokens/s in all" in Summary(5, 0, "stop", 0.0, 0.0, by_token=False).line()
