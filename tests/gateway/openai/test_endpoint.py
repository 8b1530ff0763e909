"""Completions and chats over a real server: what comes out, in which order, and how each request ends."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
import structlog

from protocol.errors import ErrorCode
from protocol.events import Delta, Step, Usage
from protocol.request import ChatInput, Message, TextInput, TokensInput
from tests.gateway.harness.serving import CHAT, COMPLETION, Served, events, open_raw, serving

pytestmark = pytest.mark.anyio


async def post(served: Served, path: str, body: dict[str, Any], into: list[Any]) -> None:
    response = await served.client.post(path, json=body)
    into.append(response)


async def stream(served: Served, path: str, body: dict[str, Any], into: list[Any]) -> None:
    async with served.client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        into.extend(await events(response))


async def test_a_completion_is_collected_whole() -> None:
    got: list[Any] = []
    async with serving() as served, anyio.create_task_group() as group:
        group.start_soon(post, served, "/v1/completions", {**COMPLETION, "return_token_ids": True}, got)
        (submit,) = await served.worker.wait_submits(1)
        assert submit.input == TextInput("hi")
        assert submit.limits.max_tokens == 8
        served.worker.token(submit.stream, "Hel", 5)
        served.worker.token(submit.stream, "", 6)
        served.worker.token(submit.stream, "lo", 7)
        served.worker.finish(submit.stream, "!", reason="length", usage=Usage(2, 3))
    body = got[0].json()
    assert got[0].status_code == 200
    assert body.pop("id").startswith("cmpl-")
    assert body.pop("created") > 0
    assert body == {
        "object": "text_completion",
        "model": "tiny",
        "system_fingerprint": "fp_0123456789abcdef",
        "choices": [
            {"index": 0, "text": "Hello!", "logprobs": None, "finish_reason": "length", "token_ids": [5, 6, 7]}
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 3,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
    assert served.live == 0
    assert served.worker.cancels == []


async def test_a_chat_is_collected_whole() -> None:
    got: list[Any] = []
    async with serving() as served, anyio.create_task_group() as group:
        group.start_soon(post, served, "/v1/chat/completions", CHAT, got)
        (submit,) = await served.worker.wait_submits(1)
        assert isinstance(submit.input, ChatInput)
        assert submit.input.messages == (Message("user", "hi"),)
        assert submit.input.now > 0, "a template's date must not change when the request goes on elsewhere"
        served.worker.finish(submit.stream, "Hello")
    body = got[0].json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


async def test_a_completion_streams_with_usage_last() -> None:
    got: list[Any] = []
    body = {**COMPLETION, "stream_options": {"include_usage": True}, "return_token_ids": True}
    async with serving() as served, anyio.create_task_group() as group:
        group.start_soon(stream, served, "/v1/completions", body, got)
        (submit,) = await served.worker.wait_submits(1)
        served.worker.token(submit.stream, "Hel", 5)
        await served.until(lambda: bool(served.live))
        served.worker.finish(submit.stream, "lo", usage=Usage(2, 1))
    assert got[-1] == "[DONE]"
    *chunks, usage = got[:-1]
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 1,
        "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert all(chunk["usage"] is None and chunk["object"] == "text_completion" for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == "Hello"
    assert [token for choice in choices for token in choice["token_ids"]] == [5]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    assert len({chunk["id"] for chunk in got[:-1]}) == 1


async def test_a_chat_streams_its_role_first() -> None:
    got: list[Any] = []
    async with serving() as served, anyio.create_task_group() as group:
        group.start_soon(stream, served, "/v1/chat/completions", CHAT, got)
        (submit,) = await served.worker.wait_submits(1)
        served.worker.token(submit.stream, 'a "quoted"\n\u2028 word é', 5)
        served.worker.finish(submit.stream)
    assert got.pop() == "[DONE]"
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "usage" not in got[0]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in got)
    assert text == 'a "quoted"\n\u2028 word é'
    assert got[-1]["choices"][0]["finish_reason"] == "stop"
    assert {chunk["object"] for chunk in got} == {"chat.completion.chunk"}


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
async def test_choices_interleave_with_their_index_and_seed(streaming: bool) -> None:
    got: list[Any] = []
    send = stream if streaming else post
    body = {**COMPLETION, "prompt": ["a", "b"], "n": 2, "seed": 10}
    async with serving() as served, anyio.create_task_group() as group:
        group.start_soon(send, served, "/v1/completions", body, got)
        submits = await served.worker.wait_submits(4)
        assert len(served.worker.sent) == 1, "the fan-out is one message"
        assert [submit.input for submit in submits] == [TextInput(text) for text in "aabb"]
        assert [submit.sampling.seed for submit in submits] == [10, 11, 10, 11]
        served.worker.say(Step(tuple(Delta(submit.stream, (i,), f"<{i}") for i, submit in enumerate(submits))))
        for i in (2, 0, 3, 1):
            served.worker.finish(submits[i].stream, ">", usage=Usage(5, 7))
    choices = [choice for chunk in got[:-1] for choice in chunk["choices"]] if streaming else got[0].json()["choices"]
    texts = {i: "".join(choice["text"] for choice in choices if choice["index"] == i) for i in range(4)}
    assert texts == {0: "<0>", 1: "<1>", 2: "<2>", 3: "<3>"}
    if not streaming:
        assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
        assert got[0].json()["usage"] == {
            "prompt_tokens": 10,
            "completion_tokens": 28,
            "total_tokens": 38,
            "prompt_tokens_details": {"cached_tokens": 0},
        }


@pytest.mark.parametrize(
    ("prompt", "inputs"),
    [
        pytest.param("a", [TextInput("a")], id="string"),
        pytest.param(["a", "b"], [TextInput("a"), TextInput("b")], id="strings"),
        pytest.param([1, 2], [TokensInput((1, 2))], id="tokens"),
        pytest.param([[1], [2, 3]], [TokensInput((1,)), TokensInput((2, 3))], id="token lists"),
    ],
)
async def test_every_form_of_prompt(prompt: object, inputs: list[object]) -> None:
    got: list[Any] = []
    async with serving() as served, anyio.create_task_group() as group:
        group.start_soon(post, served, "/v1/completions", {**COMPLETION, "prompt": prompt}, got)
        submits = await served.worker.wait_submits(len(inputs))
        assert [submit.input for submit in submits] == inputs
        for submit in submits:
            served.worker.finish(submit.stream, "x")
    assert [choice["text"] for choice in got[0].json()["choices"]] == ["x"] * len(inputs)


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.INVALID, 400),
        (ErrorCode.UNSUPPORTED, 400),
        (ErrorCode.CONTEXT, 400),
        (ErrorCode.TEMPLATE, 400),
        (ErrorCode.OVERLOADED, 429),
        (ErrorCode.DEADLINE, 504),
        (ErrorCode.QUARANTINED, 500),
        (ErrorCode.UNAVAILABLE, 503),
        (ErrorCode.INTERNAL, 500),
    ],
    ids=str,
)
async def test_a_failure_before_the_first_token_is_a_status(code: ErrorCode, status: int, streaming: bool) -> None:
    got: list[Any] = []
    async with serving() as served, anyio.create_task_group() as group:
        group.start_soon(post, served, "/v1/completions", {**COMPLETION, "stream": streaming, "n": 2}, got)
        first, second = await served.worker.wait_submits(2)
        served.worker.fail(first.stream, code, "because", "prompt")
        assert await served.worker.wait_cancels(1) == [second.stream], "its sibling does not go on for nobody"
    assert got[0].status_code == status
    error = got[0].json()["error"]
    assert (error["message"], error["param"], error["code"]) == ("because", "prompt", code.value)
    assert ("retry-after" in got[0].headers) == (status in (429, 503))
    assert served.live == 0


async def test_a_failure_in_a_stream_is_its_last_chunk() -> None:
    got: list[Any] = []
    async with serving() as served, anyio.create_task_group() as group:
        group.start_soon(stream, served, "/v1/chat/completions", CHAT, got)
        (submit,) = await served.worker.wait_submits(1)
        served.worker.token(submit.stream, "Hel", 5)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        served.worker.fail(submit.stream, ErrorCode.DEADLINE, "too late")
    assert got[-1] == "[DONE]"
    assert got[-2]["error"]["code"] == "deadline_exceeded"
    assert got[1]["choices"][0]["delta"]["content"] == "Hel"


async def test_more_tokens_than_asked_for_are_the_workers_defect() -> None:
    got: list[Any] = []
    async with serving() as served, anyio.create_task_group() as group:
        group.start_soon(post, served, "/v1/completions", {**COMPLETION, "max_tokens": 2}, got)
        (submit,) = await served.worker.wait_submits(1)
        served.worker.token(submit.stream, "ab", 1, 2)
        assert served.live == 1
        served.worker.token(submit.stream, "c", 3)
        assert await served.worker.wait_cancels(1) == [submit.stream]
    assert got[0].status_code == 500
    assert got[0].json()["error"]["code"] == "internal_error"


async def test_tokens_coalesce_for_a_reader_that_is_behind() -> None:
    got: list[Any] = []
    async with serving() as served, anyio.create_task_group() as group:
        group.start_soon(stream, served, "/v1/completions", {**COMPLETION, "max_tokens": 100}, got)
        (submit,) = await served.worker.wait_submits(1)
        for i in range(100):
            served.worker.token(submit.stream, f"{i} ", i)
        served.worker.finish(submit.stream)
    assert len(got) == 2, "one chunk and the end"
    assert got[0]["choices"][0]["text"] == "".join(f"{i} " for i in range(100))


async def test_late_frames_of_an_ended_stream_are_nothing() -> None:
    got: list[Any] = []
    async with serving() as served, anyio.create_task_group() as group:
        group.start_soon(post, served, "/v1/completions", COMPLETION, got)
        (submit,) = await served.worker.wait_submits(1)
        served.worker.finish(submit.stream, "one")
        served.worker.finish(submit.stream, "two")
        served.worker.fail(submit.stream, ErrorCode.STEP)
        served.worker.token(submit.stream, "three", 3)
    assert got[0].json()["choices"][0]["text"] == "one"


async def test_every_end_of_a_request_is_one_log_line() -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving() as served, anyio.create_task_group() as group:
            for body in (COMPLETION, COMPLETION, COMPLETION | {"n": 0}):
                group.start_soon(post, served, "/v1/completions", body, [])
            first, second = await served.worker.wait_submits(2)
            served.worker.finish(first.stream)
            served.worker.fail(second.stream, ErrorCode.DEADLINE)
            leaver = await open_raw(served.port, "/v1/completions", COMPLETION)
            await served.worker.wait_submits(3)
            await leaver.aclose()
            await served.worker.wait_cancels(1)
    ends = [log for log in logs if log["event"] in ("request_ended", "request_refused")]
    assert sorted(log.get("outcome") or log["code"] for log in ends) == [
        "answered",
        "client_gone",
        "deadline_exceeded",
        "invalid_request",
    ]
    assert len({log["request"] for log in ends}) == 4
    assert all(log["worker"] == "w0" for log in ends if log["event"] == "request_ended")


async def test_no_seed_is_a_seed_of_its_own_each_time() -> None:
    got: list[Any] = []
    async with serving() as served, anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(post, served, "/v1/completions", COMPLETION, got)
        first, second = await served.worker.wait_submits(2)
        assert first.sampling.seed != second.sampling.seed
        served.worker.finish(first.stream)
        served.worker.finish(second.stream)
