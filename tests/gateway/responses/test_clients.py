"""The `openai` client's Responses API, as people use it, against the real server."""

from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from protocol.errors import ErrorCode
from protocol.events import Logprobs, TokenLogprob, Usage
from protocol.request import Grammar, Message, ToolCall, ToolChoice
from tests.gateway.harness.serving import serving
from tests.gateway.harness.transcripts import site
from tests.gateway.responses.scripts import client_of, scripted

pytestmark = pytest.mark.anyio

TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}


async def test_a_response() -> None:
    async with scripted("Hello") as (client, script):
        response = await client.responses.create(
            model="tiny",
            input="hi",
            instructions="Be brief.",
            max_output_tokens=8,
            temperature=0,
            metadata={"a": "b"},
            extra_body={"seed": 1, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.5},
        )
    assert response.output_text == "Hello"
    assert (response.status, response.object, response.metadata) == ("completed", "response", {"a": "b"})
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (4, 2, 6)
    (submit,) = script.served.worker.submits
    assert script.input().messages == (Message("system", "Be brief."), Message("user", "hi"))
    assert submit.limits.max_tokens == 8
    sampling = submit.sampling
    assert (sampling.temperature, sampling.seed, sampling.top_k, sampling.min_p) == (0, 1, 3, 0.1)
    assert submit.unset == ("top_p",)


async def test_a_response_of_the_blocking_client() -> None:
    async with scripted("Hello", "Again") as (_, script):
        base = f"http://127.0.0.1:{script.served.port}/v1"
        client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)

        def use() -> tuple[str, list[str]]:
            first = client.responses.create(model="tiny", input="hi").output_text
            with client.responses.create(model="tiny", input="hi", stream=True) as stream:
                return first, [event.type for event in stream]

        first, kinds = await anyio.to_thread.run_sync(use)
        await anyio.to_thread.run_sync(client.close)
    assert first == "Hello"
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


async def test_a_response_streams() -> None:
    async with scripted("Hello") as (client, _):
        stream = await client.responses.create(model="tiny", input="hi", stream=True)
        events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello"
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hello"


async def test_the_stream_helper_assembles_the_response() -> None:
    async with scripted("Hello") as (client, _), client.responses.stream(model="tiny", input="hi") as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
        response = await stream.get_final_response()
    assert snapshots[-1] == "Hello"
    assert response.output_text == "Hello"


class Weather(BaseModel):
    city: str
    degrees: int


async def test_parse_with_a_model() -> None:
    async with scripted('{"city": "Paris", "degrees": 21}') as (client, script):
        response = await client.responses.parse(model="tiny", input="weather?", text_format=Weather)
    assert response.output_parsed == Weather(city="Paris", degrees=21)
    grammar = script.served.worker.submits[0].grammar
    assert isinstance(grammar, Grammar)
    assert (grammar.kind, grammar.field) == ("json_schema", "text.format.schema")


async def test_the_stream_helper_parses_a_model() -> None:
    async with (
        scripted('{"city": "Paris", "degrees": 21}') as (client, _),
        client.responses.stream(model="tiny", input="weather?", text_format=Weather) as stream,
    ):
        response = await stream.get_final_response()
    assert response.output_parsed == Weather(city="Paris", degrees=21)


async def test_tools_and_their_choice_reach_the_worker() -> None:
    async with scripted("no") as (client, script):
        response = await client.responses.create(
            model="tiny",
            input="hi",
            tools=[TOOL],
            tool_choice={"type": "function", "name": "weather"},
            parallel_tool_calls=False,
        )
        found = script.input()
    assert found.tool_choice == ToolChoice("required", "weather", False)
    assert found.parse_tools
    assert '"strict":true' in found.tools_json
    assert response.tools[0].type == "function"
    assert response.parallel_tool_calls is False


async def test_a_loop_of_tools() -> None:
    """The call is the client's own here: workers report calls as segments."""
    async with scripted("It is sunny.") as (client, script):
        response = await client.responses.create(
            model="tiny",
            tools=[TOOL],
            input=[
                {"role": "user", "content": "How is the weather in Paris?"},
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "Hm"}],
                },
                {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Paris"}'},
                {"type": "function_call_output", "call_id": "call_1", "output": '{"sky": "sunny"}'},
            ],
        )
        found = script.input().messages
    assert response.output_text == "It is sunny."
    call = ToolCall("call_1", "weather", '{"city": "Paris"}')
    assert found[1:] == (
        Message("assistant", "", tool_calls=(call,), reasoning="Hm"),
        Message("tool", '{"sky": "sunny"}', tool_call_id="call_1"),
    )


async def test_output_items_are_sent_back_as_they_came() -> None:
    async with scripted("One", "Two") as (client, script):
        first = await client.responses.create(model="tiny", input="hi", store=False)
        again: Any = [{"role": "user", "content": "hi"}, *first.output, {"role": "user", "content": "and?"}]
        await client.responses.create(model="tiny", input=again, store=False)
        assert script.input().messages == (
            Message("user", "hi"),
            Message("assistant", "One"),
            Message("user", "and?"),
        )


async def test_a_chain_of_responses() -> None:
    async with scripted("One", "Two", "Three") as (client, script):
        first = await client.responses.create(model="tiny", input="1", instructions="Count.")
        second = await client.responses.create(model="tiny", input="2", previous_response_id=first.id)
        async with client.responses.stream(model="tiny", input="3", previous_response_id=second.id) as stream:
            third = await stream.get_final_response()
        found = script.input().messages
    assert third.previous_response_id == second.id
    assert [(each.role, each.content) for each in found] == [
        ("user", "1"),
        ("assistant", "One"),
        ("user", "2"),
        ("assistant", "Two"),
        ("user", "3"),
    ]


async def test_an_item_is_referred_to_by_its_id() -> None:
    async with scripted("One", "Two") as (client, script):
        first = await client.responses.create(model="tiny", input="1")
        item: Any = {"type": "item_reference", "id": first.output[0].id}
        await client.responses.create(model="tiny", input=[item, {"role": "user", "content": "2"}])
        assert script.input().messages == (Message("assistant", "One"), Message("user", "2"))


async def test_log_probabilities() -> None:
    async with serving() as served, anyio.create_task_group() as group, client_of(served) as client:

        async def script() -> None:
            (submit,) = await served.worker.wait_submits(1)
            assert submit.sampling.logprobs == 1
            sampled = TokenLogprob(7, -0.5, b"Hi")
            served.worker.report(submit.stream, "Hi", Logprobs(sampled, (sampled,)))
            served.worker.finish(submit.stream)

        group.start_soon(script)
        response = await client.responses.create(
            model="tiny", input="hi", include=["message.output_text.logprobs"], top_logprobs=1
        )
    content: Any = response.output[0]
    (report,) = content.content[0].logprobs
    assert (report.token, report.logprob, report.top_logprobs[0].bytes) == ("Hi", -0.5, [72, 105])


@pytest.mark.parametrize(
    ("fields", "error", "param", "code"),
    [
        ({"model": "huge"}, openai.NotFoundError, "model", "model_not_found"),
        ({"previous_response_id": "resp_1"}, openai.NotFoundError, "previous_response_id", "response_not_found"),
        ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, "tools[0].type", "unsupported"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, openai.NotFoundError, "input[0].id", None),
    ],
    ids=["model", "previous", "tool", "reference"],
)
async def test_refusals_are_typed(
    fields: dict[str, Any], error: type[openai.APIStatusError], param: str, code: str | None
) -> None:
    async with serving() as served, client_of(served) as client:
        with pytest.raises(error) as caught:
            await client.responses.create(**({"model": "tiny", "input": "hi"} | fields))
    assert caught.value.param == param
    assert code is None or caught.value.code == code


async def test_a_failure_in_a_stream_is_an_event_and_before_it_an_exception() -> None:
    async with serving() as served, anyio.create_task_group() as group, client_of(served) as client:

        async def script() -> None:
            (submit,) = await served.worker.wait_submits(1)
            served.worker.fail(submit.stream, ErrorCode.CONTEXT, "too long", "input")
            submit = (await served.worker.wait_submits(2))[-1]
            served.worker.token(submit.stream, "Hel", 1)
            await begun.wait()
            served.worker.fail(submit.stream, ErrorCode.DEADLINE, "too late")

        begun = anyio.Event()
        group.start_soon(script)
        with pytest.raises(openai.BadRequestError):
            await client.responses.create(model="tiny", input="hi", stream=True)
        async for last in await client.responses.create(model="tiny", input="hi", stream=True):
            if last.type == "response.output_text.delta":
                begun.set()
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.message == "too late"


async def test_a_stream_continues_when_its_worker_dies() -> None:
    async with serving("a", "b") as served, anyio.create_task_group() as group, client_of(served) as client:
        deltas: list[str] = []
        begun = anyio.Event()

        async def script() -> None:
            await served.until(lambda: any(worker.submits for worker in served.workers))
            first, other = sorted(served.workers, key=lambda worker: not worker.submits)
            (submit,) = first.submits
            first.token(submit.stream, "Hel", 1)
            await begun.wait()
            first.die()
            (again,) = await other.wait_submits(1)
            assert again.resume == (1,)
            other.token(again.stream, "lo", 2)
            other.finish(again.stream, usage=Usage(4, 2))

        group.start_soon(script)
        async with client.responses.stream(model="tiny", input="hi") as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    deltas.append(event.delta)
                    begun.set()
            response = await stream.get_final_response()
    assert (deltas, response.output_text) == (["Hel", "lo"], "Hello")


async def test_the_body_of_a_response_has_the_types_of_the_client() -> None:
    async with scripted("Hello") as (client, _):
        raw = await client.responses.with_raw_response.create(model="tiny", input="hi")
        parsed = Response.model_validate_json(raw.text)
    assert parsed.status == "completed"
    assert parsed.output_text == "Hello"


async def test_a_stream_is_resumed_by_the_id_of_its_last_event() -> None:
    async with site() as made:
        body = {"model": "tiny", "input": "hi", "stream": True, "stream_options": {"resume_s": 60}}
        first = made.post("/v1/responses", body)
        (stream,) = await made.placed()
        await made.token(stream, "Hel", 1)
        await first.leave()
        made.worker.finish(stream, "lo")
        path = f"/v1/streams/{first.headers['x-stream-id']}"
        rest = await made.clients.ask("GET", path, query=f"starting_after={len(first.events)}")
        whole = await made.clients.ask("GET", path)
        stored = await made.clients.ask("GET", f"/v1/responses/{first.headers['x-stream-id']}")
    assert whole.events == first.events + rest.events
    assert b"event: response.completed" in rest.events[-1]
    assert stored.status == 200
