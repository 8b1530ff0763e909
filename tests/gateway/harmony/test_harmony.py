"""Chats with a model of the harmony format, whose side is given: prompts by its template, calls and reasoning."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harmony.checkpoint import Script, make_harmony_checkpoint
from tests.gateway.harness.real import Real, launch, real_gateway
from tests.gateway.harness.serving import events

pytestmark = pytest.mark.anyio

ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
USER = "<|start|>user<|message|>{}<|end|><|start|>assistant"
CALLED = '<|start|>assistant to=functions.{}<|channel|>commentary json<|message|>{{"city": "{}"}}<|call|>'
RESULT = '<|start|>functions.{} to=assistant<|channel|>commentary<|message|>"{}"<|end|>'
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>'
LOOKED = f"<|start|>assistant{ANALYSIS}I look.<|end|>"
PARIS = CALLED.format("weather", "Paris") + RESULT.format("weather", "sunny")
SCRIPTS = [
    Script(USER.format("Weather?"), f"{ANALYSIS}I look.{NEXT}{CALL}", ["Reasoning: high", "type weather = "]),
    Script(USER.format("Plan?"), f"{ANALYSIS}Hm.{NEXT}<|channel|>commentary<|message|>**Plan**{NEXT}{CALL}"),
    Script(f"{LOOKED}{PARIS}<|start|>assistant", f"{FINAL}It is sunny.<|return|>"),
    Script(
        f"Weather?<|end|>{PARIS}<|start|>assistant{FINAL}It is sunny.<|end|>" + USER.format("Thanks"),
        f"{ANALYSIS}Polite.{NEXT}{FINAL}You are welcome.<|return|>",
    ),
    Script(
        f"{LOOKED}{PARIS}" + CALLED.format("time", "Rome") + RESULT.format("time", "noon") + "<|start|>assistant",
        f"{FINAL}Sunny, at noon.<|return|>",
    ),
    Script(USER.format("Number?"), f'{ANALYSIS}One?{NEXT}{FINAL}{{"n": 1}}<|return|>'),
    Script(USER.format("Search"), '<|channel|>analysis to=browser.search<|message|>{"query": "x"}<|call|>'),
]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("weather", "time")]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
ASKED = {"role": "user", "content": "Weather?"}


def calling(*calls: tuple[str, str], text: str | None = None) -> dict[str, Any]:
    made = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": json.dumps({"city": city})}}
        for at, (name, city) in enumerate(calls)
    ]
    return {"role": "assistant", "content": text, "reasoning_content": "I look.", "tool_calls": made}


def result(call: int, text: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": f"c{call}", "content": text}


async def chat(real: Real, messages: list[dict[str, Any]], **fields: Any) -> tuple[dict[str, Any], str]:
    """The message and the reason of its end: the same whole and streamed."""
    body = {"model": "tiny", "messages": messages, "max_tokens": 200, "temperature": 0} | fields
    whole = (await real.client.post("/v1/chat/completions", json=body)).json()
    (choice,) = whole["choices"]
    async with real.client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as response:
        chunks = await events(response)
    streamed: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": {}}
    reason = ""
    for chunk in chunks[:-1]:
        for each in chunk["choices"]:
            delta, reason = each["delta"], each["finish_reason"] or reason
            for name in ("content", "reasoning_content"):
                streamed[name] += delta.get(name) or ""
            for call in delta.get("tool_calls", ()):
                streamed["calls"].setdefault(call["index"], []).append(call["function"])
    calls = [
        ("".join(part.get("name") or "" for part in parts), "".join(part.get("arguments") or "" for part in parts))
        for parts in streamed["calls"].values()
    ]
    message = {
        "content": choice["message"].get("content") or "",
        "reasoning": choice["message"].get("reasoning_content") or "",
        "calls": [
            (each["function"]["name"], each["function"]["arguments"])
            for each in choice["message"].get("tool_calls") or ()
        ],
    }
    assert (streamed["content"], streamed["reasoning_content"], calls, reason) == (
        message["content"],
        message["reasoning"],
        message["calls"],
        choice["finish_reason"],
    )
    return message, reason


def said(content: str = "", reasoning: str = "", *calls: tuple[str, str]) -> dict[str, Any]:
    return {"content": content, "reasoning": reasoning, "calls": list(calls)}


WEATHER = ("weather", '{"city": "Paris"}')


async def test_chats_with_tools_and_reasoning(tmp_path: Path) -> None:
    path = make_harmony_checkpoint(tmp_path / "model", SCRIPTS)
    async with real_gateway(launch("a", path=path, program="tests.gateway.harmony.dictated")) as real:
        first = await chat(real, [ASKED], tools=TOOLS, reasoning_effort="high")
        assert first == (said("", "I look.", WEATHER), "tool_calls")
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            forced = await chat(real, [ASKED], tools=TOOLS, reasoning_effort="high", tool_choice=choice)
            assert forced[0]["calls"] == [WEATHER]
        plan = await chat(real, [{"role": "user", "content": "Plan?"}], tools=TOOLS)
        assert plan == (said("**Plan**", "Hm.", WEATHER), "tool_calls")

        turns = [ASKED, calling(("weather", "Paris")), result(0, "sunny")]
        assert await chat(real, turns, tools=TOOLS) == (said("It is sunny."), "stop")
        # A text beside the call and its reasoning, of which the template takes one.
        with_text = [ASKED, calling(("weather", "Paris"), text="I look."), result(0, "sunny")]
        assert (await chat(real, with_text, tools=TOOLS))[0] == said("It is sunny.")
        later = [*turns, {"role": "assistant", "content": "It is sunny."}, {"role": "user", "content": "Thanks"}]
        assert await chat(real, later, tools=TOOLS) == (said("You are welcome.", "Polite."), "stop")
        both = [ASKED, calling(("weather", "Paris"), ("time", "Rome")), result(1, "noon"), result(0, "sunny")]
        assert (await chat(real, both, tools=TOOLS))[0] == said("Sunny, at noon.")

        wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
        number = await chat(real, [{"role": "user", "content": "Number?"}], response_format=wanted)
        assert number[0] == said('{"n": 1}', "One?")
        search = await chat(real, [{"role": "user", "content": "Search"}], tools=TOOLS)
        assert search == (said("", "", ("browser.search", '{"query": "x"}')), "tool_calls")

        await check_responses(real)


async def check_responses(real: Real) -> None:
    """The same by the Responses API, in whose items reasoning and calls are apart."""
    tools = [{"type": "function", "name": each, "parameters": PARAMETERS} for each in ("weather", "time")]
    body = {"model": "tiny", "input": "Weather?", "tools": tools, "reasoning": {"effort": "high"}, "temperature": 0}
    whole = (await real.client.post("/v1/responses", json=body)).json()
    reasoning, call = whole["output"]
    assert (reasoning["type"], call["type"]) == ("reasoning", "function_call")
    assert "I look." in json.dumps(reasoning)
    assert (call["name"], call["arguments"]) == WEATHER
    async with real.client.stream("POST", "/v1/responses", json=body | {"stream": True}) as response:
        last = (await events(response))[-1]
    assert [each["type"] for each in last["response"]["output"]] == ["reasoning", "function_call"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    again = body | {"input": [{"role": "user", "content": "Weather?"}, *whole["output"], output]}
    answered = (await real.client.post("/v1/responses", json=again)).json()
    assert [each["type"] for each in answered["output"]] == ["message"]
    assert answered["output"][0]["content"][0]["text"] == "It is sunny."
    chained = body | {"input": [output], "previous_response_id": whole["id"]}
    answered = (await real.client.post("/v1/responses", json=chained)).json()
    assert answered["output"][0]["content"][0]["text"] == "It is sunny."
