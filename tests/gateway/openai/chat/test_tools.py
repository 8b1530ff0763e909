"""Tools of a chat completion: what the worker gets, and what is refused, where."""

import json
from typing import Any

import pytest

from gateway.generation.tools import MAX_DEPTH, MAX_DESCRIPTION, MAX_TOOLS
from protocol.request import ChatInput, ToolChoice
from tests.gateway.openai.bodies import chat, completion, refusal, tool

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [tool(description="The weather.", parameters=CITY, strict=True), tool("time")]


def offered(**fields: Any) -> ChatInput:
    source = chat(**fields).sequences[0].input
    assert isinstance(source, ChatInput)
    return source


def named(*names: str, mode: str = "auto") -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_tools_reach_the_worker_as_templates_expect_them() -> None:
    source = offered(tools=TOOLS)
    weather = {"name": "weather", "description": "The weather.", "parameters": CITY, "strict": True}
    time = {"name": "time", "parameters": {"type": "object", "properties": {}}}
    assert json.loads(source.tools_json) == [
        {"type": "function", "function": weather},
        {"type": "function", "function": time},
    ]
    assert (source.tool_choice, source.parse_tools) == (ToolChoice(), True)


@pytest.mark.parametrize("fields", [{}, {"tools": None}, {"tools": []}, {"tools": [], "tool_choice": "auto"}])
def test_without_tools_nothing_is_parsed(fields: dict[str, Any]) -> None:
    source = offered(**fields)
    assert (source.tools_json, source.parse_tools) == ("", False)


@pytest.mark.parametrize(
    ("choice", "expected", "parsed"),
    [
        (None, ToolChoice("auto"), True),
        ("auto", ToolChoice("auto"), True),
        ("none", ToolChoice("none"), False),
        ("required", ToolChoice("required"), True),
        ({"type": "function", "function": {"name": "time"}}, ToolChoice("required", "time"), True),
    ],
    ids=["default", "auto", "none", "required", "named"],
)
def test_the_choice_among_tools_reaches_the_worker_and_the_model_sees_all(
    choice: Any, expected: ToolChoice, parsed: bool
) -> None:
    source = offered(tools=TOOLS, tool_choice=choice)
    assert (source.tool_choice, source.parse_tools) == (expected, parsed)
    assert source.tools_json == offered(tools=TOOLS).tools_json


@pytest.mark.parametrize(("given", "parallel"), [(None, True), (True, True), (False, False)])
def test_parallel_calls_are_allowed_by_default(given: bool | None, parallel: bool) -> None:
    choice = {"type": "function", "function": {"name": "time"}}
    assert offered(tools=TOOLS, parallel_tool_calls=given).tool_choice == ToolChoice(parallel=parallel)
    forced = offered(tools=TOOLS, parallel_tool_calls=given, tool_choice=choice).tool_choice
    assert forced == ToolChoice("required", "time", parallel)
    assert offered(parallel_tool_calls=given).tools_json == "", "it has no effect without tools"


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_the_model_gets_only_the_allowed_tools(mode: str) -> None:
    source = offered(tools=TOOLS, tool_choice=named("time", mode=mode))
    assert [each["function"]["name"] for each in json.loads(source.tools_json)] == ["time"]
    assert source.tool_choice.mode == mode


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return {"type": "object", "properties": {"a": schema}}


REFUSED: list[Any] = [
    pytest.param({"tools": [tool("time"), tool("time")]}, "tools[1].function.name", id="two of one name"),
    pytest.param({"tools": [tool('a"b')]}, "tools[0].function.name", id="name with a quote"),
    pytest.param({"tools": [tool("")]}, "tools[0].function.name", id="no name"),
    pytest.param({"tools": [tool("a\n")]}, "tools[0].function.name", id="name with a line break"),
    pytest.param({"tools": [tool("<|im_end|>")]}, "tools[0].function.name", id="name that is a control token"),
    pytest.param({"tools": [tool("x" * 129)]}, "tools[0].function.name", id="long name"),
    pytest.param({"tools": [tool() | {"function": {"name": 5}}]}, "tools[0].function.name", id="number as a name"),
    pytest.param({"tools": [tool(f"t{i}") for i in range(10_000)]}, "tools", id="10,000 tools"),
    pytest.param({"tools": [tool(parameters=nested(MAX_DEPTH))]}, "tools[0].function.parameters", id="deep schema"),
    pytest.param({"tools": [tool(parameters=[])]}, "tools[0].function.parameters", id="schema that is a list"),
    pytest.param(
        {"tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters.type", id="not an object"
    ),
    pytest.param(
        {"tools": [tool(description="x" * (MAX_DESCRIPTION + 1))]}, "tools[0].function.description", id="description"
    ),
    pytest.param(
        {"tools": [tool(f"t{i}", description="x" * MAX_DESCRIPTION) for i in range(64)]},
        "tools[0].function",
        id="megabytes",
    ),
    pytest.param({"tools": [tool(other=1)]}, "tools[0].function.other", id="unknown member"),
    pytest.param({"tools": [tool() | {"other": 1}]}, "tools[0].other", id="unknown member of the tool"),
    pytest.param({"tools": [{"type": "function"}]}, "tools[0].function", id="no function"),
    pytest.param({"tools": [{"type": "web_search"}]}, "tools[0].type", id="tool of the server"),
    pytest.param({"tools": [tool(strict="yes")]}, "tools[0].function.strict", id="strict"),
    pytest.param({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", id="unknown choice"),
    pytest.param({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice.type", id="choice of another kind"),
    pytest.param({"tool_choice": "required"}, "tool_choice", id="required without tools"),
    pytest.param({"tools": [], "tool_choice": "required"}, "tool_choice", id="required with no tools"),
    pytest.param(
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "tides"}}},
        "tool_choice.function.name",
        id="choice of an unknown tool",
    ),
    pytest.param(
        {"tool_choice": {"type": "function", "function": {"name": "time"}}},
        "tool_choice.function.name",
        id="choice without tools",
    ),
    pytest.param(
        {"tools": TOOLS, "tool_choice": named("time", "tides")},
        "tool_choice.allowed_tools.tools[1].function.name",
        id="unknown tool allowed",
    ),
    pytest.param({"tools": TOOLS, "tool_choice": named()}, "tool_choice.allowed_tools.tools", id="nothing allowed"),
    pytest.param(
        {"tools": TOOLS, "tool_choice": named("time", mode="none")}, "tool_choice.allowed_tools.mode", id="mode"
    ),
    pytest.param({"parallel_tool_calls": "no"}, "parallel_tool_calls", id="parallel"),
    pytest.param({"functions": [{"name": "f"}]}, "functions", id="functions"),
    pytest.param({"function_call": {"name": "f"}}, "function_call", id="function call"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_bad_tools_are_refused_at_their_place(fields: dict[str, Any], param: str) -> None:
    error = refusal(chat, **fields)
    assert (error.status, error.field) == (400, param)


def test_tools_at_their_bounds_are_taken() -> None:
    tools = [tool("x" * 120 + str(1000 + i), parameters=nested(MAX_DEPTH - 3)) for i in range(MAX_TOOLS)]
    assert len(json.loads(offered(tools=tools).tools_json)) == MAX_TOOLS


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tools": [{"type": "web_search"}]}, "`tools[0].type` takes function, the only kind of tool here"),
        ({"tool_choice": "any"}, "`tool_choice` takes auto, none, required or an object that names a tool, not 'any'"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "custom"}},
            "`tool_choice.type` takes function or allowed_tools, not 'custom'",
        ),
    ],
)
def test_a_refusal_states_what_is_accepted(fields: dict[str, Any], text: str) -> None:
    assert refusal(chat, **fields).text.startswith(text)


def test_a_completion_has_no_tools() -> None:
    error = refusal(completion, tools=TOOLS)
    assert (error.field, error.code) == ("tools", "unknown_parameter")
    assert "/v1/chat/completions" in error.text
