"""Tools with the `openai` client, as people use it: loops of calls and results, streams, and the client's helpers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import anyio.to_thread
import openai
import pydantic
import pytest

from protocol.commands import Submit
from protocol.events import Usage
from protocol.request import ChatInput, Message, ToolCall, ToolChoice
from tests.gateway.harness.serving import Served, serving
from tests.gateway.openai.chat.parsed_output import Script, answering, call, said, send, thought

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def openai_client(script: Script) -> AsyncIterator[tuple[openai.AsyncOpenAI, Served]]:
    async with serving() as served, anyio.create_task_group() as group:
        group.start_soon(script, served)
        base = f"http://127.0.0.1:{served.port}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            yield client, served


TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"type": "function", "function": {"name": "time"}},
]
QUESTION: Any = {"role": "user", "content": "How is the weather?"}
LOOKING = [
    *thought("Let me ", "look."),
    *call(0, "weather", '{"city": "Pa', 'ris"', "}"),
    *call(1, "time", "{}"),
]
ANSWER = list(said("It is ", "grey."))


def conversation(submit: Submit) -> ChatInput:
    assert isinstance(submit.input, ChatInput)
    return submit.input


def check_second_turn(submit: Submit, ids: list[str]) -> None:
    """The worker gets the calls as the model made them, with the ids that the client saw."""
    assert conversation(submit).messages == (
        Message("user", "How is the weather?"),
        Message(
            "assistant",
            "",
            tool_calls=(ToolCall(ids[0], "weather", '{"city": "Paris"}'), ToolCall(ids[1], "time", "{}")),
            reasoning="Let me look.",
        ),
        Message("tool", "result of weather", tool_call_id=ids[0]),
        Message("tool", "result of time", tool_call_id=ids[1]),
    )
    assert len(set(ids)) == 2


async def test_a_loop_of_calls_and_results() -> None:
    messages: list[Any] = [QUESTION]
    async with openai_client(answering(LOOKING, ANSWER)) as (client, served):
        answer = await client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert choice.message.tool_calls is not None
        messages.append(choice.message)
        for made in choice.message.tool_calls:
            assert made.type == "function"
            content = f"result of {made.function.name}"
            messages.append({"role": "tool", "tool_call_id": made.id, "content": content})
        last = await client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
        assert (last.choices[0].message.content, last.choices[0].finish_reason) == ("It is grey.", "stop")
        first, second = served.worker.submits
    assert (conversation(first).parse_tools, conversation(first).parse_reasoning) == (True, True)
    check_second_turn(second, [made.id for made in choice.message.tool_calls])


def sync_loop(base: str) -> list[str]:
    """The same with the client without asyncio, streamed and dumped as plain dictionaries."""
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0) as client:
        messages: list[Any] = [QUESTION]
        message: dict[str, Any] = {"role": "assistant", "content": None, "reasoning_content": "", "tool_calls": []}
        for chunk in client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS, stream=True):
            delta = chunk.choices[0].delta
            message["reasoning_content"] += getattr(delta, "reasoning_content", None) or ""
            for part in delta.tool_calls or []:
                if part.id:
                    assert part.index == len(message["tool_calls"])
                    assert part.function is not None
                    function = {"name": part.function.name, "arguments": ""}
                    message["tool_calls"].append({"id": part.id, "type": part.type, "function": function})
                assert part.function is not None
                message["tool_calls"][part.index]["function"]["arguments"] += part.function.arguments or ""
        assert chunk.choices[0].finish_reason == "tool_calls"
        messages.append(message)
        for made in message["tool_calls"]:
            content = f"result of {made['function']['name']}"
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": content})
        client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
        return [made["id"] for made in message["tool_calls"]]


async def test_a_loop_that_streams_without_asyncio() -> None:
    async with openai_client(answering(LOOKING, ANSWER)) as (_, served):
        ids = await anyio.to_thread.run_sync(sync_loop, f"http://127.0.0.1:{served.port}/v1")
        check_second_turn(served.worker.submits[1], ids)


class GetWeather(pydantic.BaseModel):
    """Get the weather."""

    city: str
    unit: Literal["C", "F"] | None = None


CALLING = [*said("Let me look."), *call(0, "GetWeather", '{"city": "Par', 'is", ', '"unit": "C"}')]


async def test_the_parse_helper() -> None:
    tools = [openai.pydantic_function_tool(GetWeather)]
    async with openai_client(answering(CALLING, ANSWER)) as (client, served):
        answer = await client.chat.completions.parse(model="tiny", messages=[QUESTION], tools=tools)
        message = answer.choices[0].message
        assert message.tool_calls is not None
        assert message.tool_calls[0].function.parsed_arguments == GetWeather(city="Paris", unit="C")
        result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "grey"}
        history: list[Any] = [QUESTION, message, result]
        await client.chat.completions.parse(model="tiny", messages=history, tools=tools)
        first, second = served.worker.submits
    (definition,) = json.loads(conversation(first).tools_json)
    assert definition["function"]["strict"] is True
    assert definition["function"]["parameters"]["required"] == ["city", "unit"]
    made = conversation(second).messages[1]
    assert (made.content, made.tool_calls[0].name) == ("Let me look.", "GetWeather")


async def test_the_stream_helper() -> None:
    tools = [openai.pydantic_function_tool(GetWeather)]
    async with openai_client(answering(CALLING, ANSWER)) as (client, served):
        async with client.chat.completions.stream(model="tiny", messages=[QUESTION], tools=tools) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_completion()
        parts = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
        assert "".join(parts) == '{"city": "Paris", "unit": "C"}'
        (done,) = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        assert done.parsed_arguments == GetWeather(city="Paris", unit="C")
        message = final.choices[0].message
        assert (message.content, final.choices[0].finish_reason) == ("Let me look.", "tool_calls")
        assert message.tool_calls is not None
        result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "grey"}
        history: list[Any] = [QUESTION, message, result]
        await client.chat.completions.create(model="tiny", messages=history, tools=tools)
        made = conversation(served.worker.submits[1]).messages[1]
    assert made.tool_calls == (ToolCall(message.tool_calls[0].id, "GetWeather", '{"city": "Paris", "unit": "C"}'),)


async def test_the_stream_helper_reports_calls_that_come_at_once_as_done() -> None:
    async def script(served: Served) -> None:
        (submit,) = await served.worker.wait_submits(1)
        for token, segment in enumerate(CALLING):
            send(served.worker, submit.stream, token, segment)
        served.worker.finish(submit.stream, reason="tool_calls", usage=Usage(4, len(CALLING)))

    tools = [openai.pydantic_function_tool(GetWeather)]
    async with (
        openai_client(script) as (client, _),
        client.chat.completions.stream(model="tiny", messages=[QUESTION], tools=tools) as stream,
    ):
        done = [event async for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [event.parsed_arguments for event in done] == [GetWeather(city="Paris", unit="C")]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("required", ToolChoice("required")),
        ("none", ToolChoice("none")),
        ({"type": "function", "function": {"name": "time"}}, ToolChoice("required", "time")),
    ],
    ids=["required", "none", "named"],
)
async def test_the_choice_and_the_options_of_reasoning_reach_the_worker(choice: Any, expected: ToolChoice) -> None:
    async with openai_client(answering(ANSWER)) as (client, served):
        await client.chat.completions.create(
            model="tiny", messages=[QUESTION], tools=TOOLS, tool_choice=choice, reasoning_effort="high"
        )
        source = conversation(served.worker.submits[0])
    assert (source.tool_choice, source.options.reasoning_effort) == (expected, "high")


async def test_refusals_name_their_place() -> None:
    many: Any = [{"type": "function", "function": {"name": f"tool_{i}"}} for i in range(10_000)]
    unknown: Any = {"type": "function", "function": {"name": "tides"}}
    broken: Any = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "time", "arguments": "{"}}],
    }
    async with openai_client(answering(ANSWER)) as (client, _):
        for param, fields in (
            ("tools", {"tools": many}),
            ("tool_choice.function.name", {"tools": TOOLS, "tool_choice": unknown}),
            ("messages[1].tool_calls[0].function.arguments", {"messages": [QUESTION, broken]}),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(**({"model": "tiny", "messages": [QUESTION]} | fields))
            assert caught.value.param == param
        await client.chat.completions.create(model="tiny", messages=[QUESTION])


async def test_a_kill_in_the_middle_of_a_call_changes_nothing_for_the_client() -> None:
    """The next worker gets the tokens that were delivered, and sends what comes after them."""
    segments = [*call(0, "weather", '{"city": "Pa', 'ris"', "}")]

    async def streamed(*names: str, kill: bool) -> list[Any]:
        async def script(served: Served) -> None:
            first = served.workers[0]
            (submit,) = await first.wait_submits(1)
            lost_at = 2 if kill else len(segments)
            for token in range(lost_at):
                send(first, submit.stream, token, segments[token])
            worker = first
            if kill:
                first.die(submit.stream)
                worker = served.workers[1]
                (submit,) = await worker.wait_submits(1)
                assert submit.resume == (0, 1)
                for token in range(lost_at, len(segments)):
                    send(worker, submit.stream, token, segments[token])
            worker.finish(submit.stream, reason="tool_calls", usage=Usage(4, len(segments)))

        async with serving(*names) as served, anyio.create_task_group() as group:
            group.start_soon(script, served)
            base = f"http://127.0.0.1:{served.port}/v1"
            async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
                arguments: Any = {"model": "tiny", "messages": [QUESTION], "tools": TOOLS}
                async with client.chat.completions.stream(**arguments) as stream:
                    final = await stream.get_final_completion()
        made = final.choices[0].message.tool_calls
        assert made is not None
        assert all(each.id for each in made)
        return [(each.function.name, each.function.arguments) for each in made]

    expected = [("weather", '{"city": "Paris"}')]
    assert await streamed("w0", kill=False) == expected
    assert await streamed("w0", "w1", kill=True) == expected
