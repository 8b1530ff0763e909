"""Tools and the choice among them, as a request of the Responses API has them."""

from collections.abc import Sequence
from typing import Any

from gateway.errors import invalid
from gateway.generation.tools import ToolDefinition, encode_tools
from gateway.responses.request.schema import FunctionDefinition, NamedFunction, ResponsesBody
from gateway.responses.unsupported import refuse_options
from protocol.request import ToolChoice


def decode_tools(tools: Sequence[FunctionDefinition]) -> str:
    """Return the `tools_json` of a `ChatInput`. Raises `RequestError`."""
    paths = [f"tools[{index}]" for index in range(len(tools))]
    for tool, path in zip(tools, paths, strict=True):
        refuse_options(tool, f"{path}.")
    definitions = [
        ToolDefinition(tool.name, tool.description or "", tool.parameters, bool(tool.strict)) for tool in tools
    ]
    return encode_tools(definitions, paths)


def decode_tool_choice(body: ResponsesBody) -> ToolChoice:
    """Return which tools the answer may or must call. Raises `RequestError`."""
    choice, tools = body.tool_choice or "auto", body.tools or ()
    parallel = body.parallel_tool_calls is not False
    if isinstance(choice, NamedFunction):
        if choice.name not in {tool.name for tool in tools}:
            raise invalid("tool_choice.name", f"`tool_choice.name`: there is no tool {choice.name[:128]!r}")
        return ToolChoice("required", choice.name, parallel)
    if choice == "required" and not tools:
        raise invalid("tool_choice", "`tool_choice` is required, but `tools` is empty")
    return ToolChoice(choice, "", parallel)


def echo_tools(tools: Sequence[FunctionDefinition]) -> list[dict[str, Any]]:
    """The tools as the response repeats them."""
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": bool(tool.strict),
        }
        for tool in tools
    ]
