"""The `openai` client, as people use it, against the real server."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import openai
import pytest

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.events import Logprobs, TokenLogprob, Usage
from protocol.request import Bias, ChatInput, Message, TemplateOptions
from tests.gateway.harness.serving import Served, serving

pytestmark = pytest.mark.anyio

Script = Callable[[Served], Coroutine[Any, Any, None]]


@asynccontextmanager
async def openai_client(script: Script, **settings: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a gateway whose worker follows `script`."""
    async with serving(**settings) as served, anyio.create_task_group() as group:
        group.start_soon(script, served)
        base, key = f"http://127.0.0.1:{served.port}/v1", settings.get("api_key", "none")
        async with openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=0) as client:
            yield client


def answering(*pieces: str) -> Script:
    """Answer the first request with these pieces."""

    async def script(served: Served) -> None:
        await served.worker.wait_submits(1)
        for submit in served.worker.submits:
            for token, piece in enumerate(pieces):
                served.worker.token(submit.stream, piece, token)
                await anyio.lowlevel.checkpoint()
            served.worker.finish(submit.stream, usage=Usage(4, len(pieces)))

    return script


async def test_a_chat() -> None:
    async with openai_client(answering("Hel", "lo"), api_key="secret") as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], temperature=0, max_completion_tokens=8, seed=1
        )
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 6
    assert answer.system_fingerprint == "fp_0123456789abcdef"


async def test_a_chat_streams() -> None:
    async with openai_client(answering("Hel", "lo")) as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            n=2,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    for index in (0, 1):
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert choices[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in choices) == "Hello"
        assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (4, 4)
    assert chunks[-1].choices == []


async def test_completions() -> None:
    async with openai_client(answering("a", "b")) as client:
        answer = await client.completions.create(model="tiny", prompt=["x", "y"], max_tokens=4, stop=["\n"])
        assert [choice.text for choice in answer.choices] == ["ab", "ab"]


async def test_completions_stream() -> None:
    async with openai_client(answering("a", "b")) as client:
        stream = await client.completions.create(model="tiny", prompt=[1, 2, 3], stream=True)
        assert "".join([choice.text async for chunk in stream for choice in chunk.choices]) == "ab"


HALVES = (
    Logprobs(TokenLogprob(7, -0.5, b"a\xc3"), (TokenLogprob(7, -0.5, b"a\xc3"), TokenLogprob(9, -1.5, b" b"))),
    Logprobs(TokenLogprob(8, -2.0, b"\xa9"), (TokenLogprob(9, -0.25, b" b"), TokenLogprob(8, -2.0, b"\xa9"))),
)
"""Two tokens that share a character."""


async def reporting(served: Served) -> None:
    """Answer with two tokens, the text of which comes with the second one."""
    await served.worker.wait_submits(1)
    for submit in served.worker.submits:
        for text, half in zip(("a", "é"), HALVES, strict=True):
            served.worker.report(submit.stream, text, half)
            await anyio.lowlevel.checkpoint()
        served.worker.finish(submit.stream, usage=Usage(4, 2))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_log_probabilities_of_a_chat(stream: bool) -> None:
    options: Any = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": stream}
    async with openai_client(reporting) as client:
        answer: Any = await client.chat.completions.create(**options, logprobs=True, top_logprobs=2)
        choices = [chunk.choices[0] async for chunk in answer] if stream else answer.choices
    content = [each for choice in choices if choice.logprobs for each in choice.logprobs.content]
    assert [(each.token, each.logprob, each.bytes) for each in content] == [
        ("a\ufffd", -0.5, [97, 0xC3]),
        ("\ufffd", -2.0, [0xA9]),
    ]
    assert [(each.token, each.logprob) for each in content[1].top_logprobs] == [(" b", -0.25), ("\ufffd", -2.0)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_log_probabilities_of_a_completion(stream: bool) -> None:
    async with openai_client(reporting) as client:
        answer: Any = await client.completions.create(model="tiny", prompt="x", logprobs=2, stream=stream)
        choices = [chunk.choices[0] async for chunk in answer] if stream else answer.choices
    reports = [choice.logprobs for choice in choices if choice.logprobs]
    assert [token for each in reports for token in each.tokens] == ["bytes:\\x61\\xc3", "bytes:\\xa9"]
    assert [value for each in reports for value in each.token_logprobs] == [-0.5, -2.0]
    assert [offset for each in reports for offset in each.text_offset] == [0, 1]
    tops = [top for each in reports for top in each.top_logprobs]
    assert tops[1] == {" b": -0.25, "bytes:\\xa9": -2.0}


async def test_what_shapes_logits_reaches_the_worker() -> None:
    async def script(served: Served) -> None:
        (submit,) = await served.worker.wait_submits(1)
        sampling = submit.sampling
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
        assert sampling.logit_bias == (Bias(50256, -100.0),)
        assert sampling.repetition_penalty == 1.25
        assert submit.limits.min_tokens == 3
        served.worker.finish(submit.stream, "ok")

    async with openai_client(script) as client:
        answer = await client.completions.create(
            model="tiny",
            prompt="x",
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={"50256": -100},
            extra_body={"repetition_penalty": 1.25, "min_tokens": 3},
        )
    assert answer.choices[0].text == "ok"
    assert answer.choices[0].logprobs is None


async def test_options_of_other_servers_reach_the_worker_or_are_ignored() -> None:
    async def script(served: Served) -> None:
        (submit,) = await served.worker.wait_submits(1)
        assert isinstance(submit.input, ChatInput)
        assert submit.input.messages == (Message("user", "hi", "anna"), Message("assistant", ""), Message("user", "x"))
        assert submit.input.options == TemplateOptions(enable_thinking=False)
        assert (submit.sampling.top_k, submit.sampling.repetition_penalty) == (0, 1.5)
        assert (submit.limits.max_tokens, submit.limits.stop) == (None, ())
        served.worker.finish(submit.stream, "ok")

    async with openai_client(script) as client:
        answer = await client.chat.completions.create(
            model="tiny",
            messages=[
                {"role": "user", "content": "hi", "name": "anna"},
                {"role": "assistant", "content": None},
                {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
            ],
            max_tokens=-1,
            seed=-1,
            stop="",
            stream_options={"include_usage": True},
            extra_body={
                "top_k": -1,
                "repeat_penalty": 1.5,
                "keep_alive": "5m",
                "cache_prompt": True,
                "mirostat": 0,
                "typical_p": 1.0,
                "skip_special_tokens": True,
                "use_beam_search": False,
                "chat_template_kwargs": {"enable_thinking": False},
            },
        )
        assert answer.choices[0].message.content == "ok"
        with pytest.raises(openai.BadRequestError, match="chat_template"):
            await client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "x"}],
                extra_body={"chat_template_kwargs": {"chat_template": "{{ messages }}"}},
            )
        with pytest.raises(openai.BadRequestError, match="mirostat"):
            await client.completions.create(model="tiny", prompt="x", extra_body={"mirostat": 2})


async def test_models() -> None:
    async with openai_client(answering()) as client:
        assert [model.id async for model in await client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).owned_by == "baton"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")
        await client.completions.create(model="tiny", prompt="end")


async def test_errors_are_those_that_the_client_knows() -> None:
    async def script(served: Served) -> None:
        first: Submit = (await served.worker.wait_submits(1))[0]
        served.worker.fail(first.stream, ErrorCode.CONTEXT, "too long", "prompt")
        second = (await served.worker.wait_submits(2))[1]
        served.worker.token(second.stream, "x", 1)
        await served.until(lambda: served.live == 1)
        served.worker.fail(second.stream, ErrorCode.DEADLINE, "it broke")

    async with openai_client(script) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="tiny", prompt="x" * 999)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
        with pytest.raises(openai.BadRequestError, match="functions"):
            await client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "x"}],
                functions=[{"name": "f"}],
            )
        with pytest.raises(openai.APIError, match="it broke"):
            async for _ in await client.completions.create(model="tiny", prompt="x", stream=True):
                pass
