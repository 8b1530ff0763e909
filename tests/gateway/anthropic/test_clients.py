"""The `anthropic` client, as people use it, against the real server."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx2
import pydantic
import pytest
from anthropic.types import MessageParam, TextBlockParam, ToolParam

from protocol.commands import Submit, Tokenize
from protocol.errors import ErrorCode
from protocol.events import Tokenized, Usage
from protocol.request import ChatInput, FinishReason, Grammar, Message, TemplateOptions, ToolCall, ToolChoice
from tests.gateway.anthropic.outputs import MAX_TOKENS, OUTPUTS, streamed, whole
from tests.gateway.harness.serving import Served, serving
from tests.gateway.openai.chat.parsed_output import call, send

pytestmark = pytest.mark.anyio

Script = Callable[[Served], Coroutine[Any, Any, None]]
HI: list[MessageParam] = [{"role": "user", "content": "hi"}]
TOOL: ToolParam = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


@asynccontextmanager
async def scripted(script: Script, **settings: Any) -> AsyncIterator[Served]:
    """A gateway whose worker follows `script`."""
    async with serving(**settings) as served, anyio.create_task_group() as group:
        group.start_soon(script, served)
        yield served


@asynccontextmanager
async def anthropic_client(script: Script, **settings: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """A client of a gateway whose worker follows `script`."""
    async with scripted(script, **settings) as served, client_of(served, **settings) as client:
        yield client


def client_of(served: Served, **settings: Any) -> anthropic.AsyncAnthropic:
    base, key = f"http://127.0.0.1:{served.port}", settings.get("api_key", "none")
    return anthropic.AsyncAnthropic(base_url=base, api_key=key, max_retries=0)


def answering(*pieces: str, reason: FinishReason = "stop") -> Script:
    """Answer the first request with these pieces."""

    async def script(served: Served) -> None:
        (submit,) = await served.worker.wait_submits(1)
        for token, piece in enumerate(pieces):
            served.worker.token(submit.stream, piece, token)
            await anyio.lowlevel.checkpoint()
        served.worker.finish(submit.stream, reason=reason, usage=Usage(4, len(pieces), cached_tokens=1))

    return script


async def silent(_: Served) -> None:
    """Answer nothing."""


async def test_a_message() -> None:
    async with anthropic_client(answering("Hel", "lo"), api_key="secret") as client:
        message = await client.messages.create(model="tiny", max_tokens=8, messages=HI, system="be brief")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Hello"}]
    assert (message.stop_reason, message.stop_sequence, message.role) == ("end_turn", None, "assistant")
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (3, 1, 2)
    assert message.id.startswith("msg_")
    assert message._request_id


async def test_the_usage_tells_what_was_read_what_is_kept_and_the_rest() -> None:
    async def script(served: Served) -> None:
        (submit,) = await served.worker.wait_submits(1)
        served.worker.finish(submit.stream, "Hello", usage=Usage(100, 1, cached_tokens=16, created_tokens=64))

    system: list[TextBlockParam] = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
    async with anthropic_client(script) as client:
        usage = (await client.messages.create(model="tiny", max_tokens=8, messages=HI, system=system)).usage
    kinds = (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens)
    assert kinds == (20, 64, 16)


async def test_a_stop_sequence() -> None:
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "messages": HI, "stop_sequences": ["x", "lo"]}

    async def script(served: Served) -> None:
        for count in (1, 2):
            submit = (await served.worker.wait_submits(count))[-1]
            served.worker.finish(submit.stream, "Hel", stop="lo")

    async with anthropic_client(script) as client:
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as events:
            streamed = await events.get_final_message()
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", "lo")
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", "lo")


async def test_the_synchronous_client() -> None:
    def ask(base: str) -> tuple[str, str, str | None]:
        with anthropic.Anthropic(base_url=base, api_key="secret", max_retries=0) as client:
            with client.messages.stream(model="tiny", max_tokens=2, messages=HI) as stream:
                text = "".join(stream.text_stream)
                final = stream.get_final_message()
            listed = [model.id for model in client.models.list()]
        return text, str(final.content[0].to_dict()["text"]), ",".join([final.stop_reason or "", *listed])

    async with scripted(answering("Hel", "lo", reason="length"), api_key="secret") as served:
        found = await anyio.to_thread.run_sync(ask, f"http://127.0.0.1:{served.port}")
    assert found == ("Hello", "Hello", "max_tokens,tiny")


async def test_raw_events() -> None:
    async with anthropic_client(answering("Hel", "lo")) as client:
        stream = await client.messages.create(model="tiny", max_tokens=8, messages=HI, stream=True)
        kinds = [event.type async for event in stream]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_the_streaming_helper() -> None:
    async with (
        anthropic_client(answering("Hel", "lo")) as client,
        client.messages.stream(model="tiny", max_tokens=8, messages=HI) as stream,
    ):
        assert [text async for text in stream.text_stream] == ["Hel", "lo"]
        message = await stream.get_final_message()
    assert message.content[0].to_dict() == {"type": "text", "text": "Hello"}
    assert message.stop_reason == "end_turn"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 2)


async def test_the_beta_client() -> None:
    async with anthropic_client(answering("Hello")) as client:
        message = await client.beta.messages.create(
            model="tiny",
            max_tokens=8,
            messages=[{"role": "user", "content": "hi"}],
            betas=["interleaved-thinking-2025-05-14"],
        )
    assert message.content[0].to_dict() == {"type": "text", "text": "Hello"}


async def test_a_stream_whose_worker_dies() -> None:
    async def script(served: Served) -> None:
        (submit,) = await served.worker.wait_submits(1)
        served.worker.token(submit.stream, "Hel", 1)
        served.worker.die()
        served.worker.come_back()
        again = (await served.worker.wait_submits(2))[1]
        assert again.resume == (1,)
        served.worker.finish(again.stream, "lo", usage=Usage(4, 2))

    async with (
        anthropic_client(script) as client,
        client.messages.stream(model="tiny", max_tokens=8, messages=HI) as stream,
    ):
        assert await stream.get_final_text() == "Hello"


async def submitted(**options: Any) -> Submit:
    """The request that the worker gets."""
    seen: list[Submit] = []

    async def script(served: Served) -> None:
        seen.extend(await served.worker.wait_submits(1))
        served.worker.finish(seen[0].stream, "Hello")

    async with anthropic_client(script) as client:
        asked: dict[str, Any] = {"model": "tiny", "max_tokens": 64, "messages": HI}
        await client.messages.create(**asked | options)
    return seen[0]


async def test_a_conversation_with_tools_and_thinking() -> None:
    """An answer of the client's own types is sent back as it is."""
    answer = anthropic.types.Message.model_validate_json(whole(OUTPUTS["tools_in_parallel"]))
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "rain"}
        for block in answer.content
        if block.type == "tool_use"
    ]
    submit = await submitted(
        messages=[*HI, answer.to_param(), {"role": "user", "content": results}],
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 32},
        output_config={"effort": "max"},
    )
    assert isinstance(submit.input, ChatInput)
    calls = (ToolCall("call_1", "weather", '{"city":"Oslo"}'), ToolCall("call_2", "clock", "{}"))
    assert submit.input.messages == (
        Message("user", "hi"),
        Message("assistant", "", tool_calls=calls, reasoning="Two."),
        Message("tool", "rain", tool_call_id="call_1"),
        Message("tool", "rain", tool_call_id="call_2"),
    )
    assert submit.input.tool_choice == ToolChoice("required", "weather", parallel=False)
    assert submit.input.options == TemplateOptions(True, True, 32, "xhigh")
    assert submit.limits.reasoning_tokens == 32


async def test_the_tool_runner() -> None:
    """The runner asks for a thread, and sends the whole conversation after the answer that there are none."""

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    seen: list[Submit] = []

    async def script(served: Served) -> None:
        seen.extend(await served.worker.wait_submits(1))
        for token, segment in enumerate(call(0, "weather", '{"city":"Oslo"}')):
            send(served.worker, seen[0].stream, token, segment)
        served.worker.finish(seen[0].stream, reason="tool_calls", usage=Usage(4, 2))
        seen.append((await served.worker.wait_submits(2))[1])
        served.worker.finish(seen[1].stream, "It rains.")

    async with anthropic_client(script) as client:
        runner = client.beta.messages.tool_runner(
            model="tiny", max_tokens=8, messages=[{"role": "user", "content": "hi"}], tools=[weather]
        )
        last = await runner.until_done()
    assert [block.to_dict() for block in last.content] == [{"type": "text", "text": "It rains."}]
    assert isinstance(seen[1].input, ChatInput)
    assert [message.content for message in seen[1].input.messages] == ["hi", "", "rain in Oslo"]


async def test_a_thread_is_refused_by_name() -> None:
    async with anthropic_client(silent) as client:
        with pytest.raises(anthropic.BadRequestError, match="`thread` is not supported") as caught:
            await client.beta.messages.create(
                model="tiny", max_tokens=8, messages=[{"role": "user", "content": "hi"}], thread={"type": "create"}
            )
    assert caught.value.body["error"]["details"]["error_code"] == "thread_unsupported_request"  # type: ignore[index]


class City(pydantic.BaseModel):
    name: str


async def test_a_parsed_answer() -> None:
    seen: list[Submit] = []

    async def script(served: Served) -> None:
        seen.extend(await served.worker.wait_submits(1))
        served.worker.finish(seen[0].stream, '{"name":"Oslo"}')

    async with anthropic_client(script) as client:
        message = await client.messages.parse(model="tiny", max_tokens=8, messages=HI, output_format=City)
    assert message.parsed_output == City(name="Oslo")
    assert isinstance(seen[0].grammar, Grammar)
    assert (seen[0].grammar.kind, seen[0].grammar.field) == ("json_schema", "output_config.format.schema")


FAILURES: list[tuple[ErrorCode, type[anthropic.APIStatusError], str]] = [
    (ErrorCode.CONTEXT, anthropic.BadRequestError, "invalid_request_error"),
    (ErrorCode.OVERLOADED, anthropic.InternalServerError, "overloaded_error"),
    (ErrorCode.UNAVAILABLE, anthropic.InternalServerError, "overloaded_error"),
    (ErrorCode.QUARANTINED, anthropic.InternalServerError, "api_error"),
    (ErrorCode.DEADLINE, anthropic.InternalServerError, "timeout_error"),
]


@pytest.mark.parametrize(("code", "kind", "name"), FAILURES, ids=[str(code) for code, *_ in FAILURES])
async def test_a_failure_has_its_exception(code: ErrorCode, kind: Any, name: str) -> None:
    async def script(served: Served) -> None:
        (submit,) = await served.worker.wait_submits(1)
        served.worker.fail(submit.stream, code, "it failed")

    async with anthropic_client(script) as client:
        with pytest.raises(kind) as caught:
            await client.messages.create(model="tiny", max_tokens=8, messages=HI)
    assert (caught.value.type, caught.value.api_message) == (name, "it failed")
    assert caught.value.request_id == caught.value.body["request_id"]
    assert (caught.value.status_code == 529) == (code is ErrorCode.OVERLOADED)
    retried = code in (ErrorCode.OVERLOADED, ErrorCode.UNAVAILABLE)
    assert ("retry-after" in caught.value.response.headers) == retried


async def test_a_failure_in_a_stream_has_its_exception() -> None:
    async def script(served: Served) -> None:
        (submit,) = await served.worker.wait_submits(1)
        served.worker.token(submit.stream, "Hel", 1)
        await begun.wait()
        served.worker.fail(submit.stream, ErrorCode.QUARANTINED, "it failed")

    begun = anyio.Event()
    async with anthropic_client(script) as client:
        stream = await client.messages.create(model="tiny", max_tokens=8, messages=HI, stream=True)
        begun.set()
        with pytest.raises(anthropic.APIStatusError) as caught:
            async for _ in stream:
                pass
    assert (caught.value.type, caught.value.api_message) == ("api_error", "it failed")


@pytest.mark.parametrize(
    ("options", "key", "kind"),
    [
        ({"model": "huge"}, "secret", anthropic.NotFoundError),
        ({}, "wrong", anthropic.AuthenticationError),
        ({"extra_body": {"temperature": 5}}, "secret", anthropic.BadRequestError),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "secret", anthropic.APIStatusError),
    ],
    ids=["model", "key", "field", "size"],
)
async def test_a_refusal_has_its_exception(options: Any, key: str, kind: Any) -> None:
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "messages": HI} | options
    async with (
        scripted(silent, api_key="secret", max_body_bytes=1000) as served,
        client_of(served, api_key=key) as client,
    ):
        with pytest.raises(kind) as caught:
            await client.messages.create(**body)
    assert caught.value.request_id
    assert (caught.value.status_code == 413) == (caught.value.type == "request_too_large")


async def test_the_key_as_a_bearer_token() -> None:
    async with scripted(answering("Hello"), api_key="secret") as served:
        base = f"http://127.0.0.1:{served.port}"
        async with anthropic.AsyncAnthropic(base_url=base, auth_token="secret", max_retries=0) as client:
            assert (await client.messages.create(model="tiny", max_tokens=8, messages=HI)).content


async def test_tokens_are_counted() -> None:
    seen: list[Tokenize] = []

    async def script(served: Served) -> None:
        seen.extend(await served.worker.wait_queries(1))
        served.worker.say(Tokenized(seen[0].query, 12))

    async with anthropic_client(script, api_key="secret") as client:
        count = await client.messages.count_tokens(model="tiny", messages=HI, system="be brief", tools=[TOOL])
    assert count.input_tokens == 12
    assert count._request_id
    assert (seen[0].want, seen[0].request) == ("count", count._request_id)
    assert isinstance(seen[0].input, ChatInput)
    assert seen[0].input.messages == (Message("system", "be brief"), Message("user", "hi"))
    assert seen[0].input.tools_json


@pytest.mark.parametrize(
    ("code", "kind"),
    [(ErrorCode.TEMPLATE, anthropic.BadRequestError), (ErrorCode.INTERNAL, anthropic.InternalServerError)],
)
async def test_tokens_that_cannot_be_counted(code: ErrorCode, kind: type[anthropic.APIStatusError]) -> None:
    async def script(served: Served) -> None:
        (query,) = await served.worker.wait_queries(1)
        served.worker.say(Tokenized(query.query, text="it failed", code=code))

    image: Any = [{"role": "user", "content": [{"type": "document", "source": {}}]}]
    async with anthropic_client(script) as client:
        with pytest.raises(kind, match="it failed"):
            await client.messages.count_tokens(model="tiny", messages=HI)
        with pytest.raises(anthropic.NotFoundError, match="there is no model 'huge'"):
            await client.messages.count_tokens(model="huge", messages=HI)
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]"):
            await client.messages.count_tokens(model="tiny", messages=image)


async def test_models() -> None:
    async with anthropic_client(silent, api_key="secret") as client:
        page = await client.models.list()
        model = await client.models.retrieve("tiny")
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.models.retrieve("huge")
    assert [each.id for each in page.data] == ["tiny"]
    assert (page.has_more, page.first_id) == (False, "tiny")
    assert (model.lifecycle, model.max_input_tokens, model.type) == ("active", 128, "model")
    assert caught.value.type == "not_found_error"


@pytest.mark.parametrize("name", sorted(OUTPUTS))
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "at once"])
async def test_the_client_assembles_the_whole_answer_from_its_events(name: str, at_once: bool) -> None:
    deltas = OUTPUTS[name]
    raw = streamed([deltas] if at_once else [[each] for each in deltas])

    def respond(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=raw)

    async with (
        anthropic.AsyncAnthropic(
            base_url="http://gateway",
            api_key="none",
            http_client=anthropic.DefaultAsyncHttpxClient(transport=httpx2.MockTransport(respond)),
        ) as client,
        client.messages.stream(model="tiny", max_tokens=MAX_TOKENS, messages=HI) as stream,
    ):
        message = await stream.get_final_message()
    assert message.to_dict() == anthropic.types.Message.model_validate_json(whole(deltas)).to_dict()
