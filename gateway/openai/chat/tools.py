"""Turns the tools of a chat completion, and the choice among them, into those of a generation request."""

from typing import NamedTuple

from gateway.errors import invalid
from gateway.generation.tools import ToolDefinition, encode_tools
from gateway.openai.chat.tool_schema import AllowedToolsChoice, ChatTool, ChatToolName, NamedToolChoice
from gateway.openai.schema import ChatBody
from protocol.request import ToolChoice


class OfferedTools(NamedTuple):
    """The tools of one request, as `protocol.request.ChatInput` has them."""

    json: str = ""
    choice: ToolChoice = ToolChoice()
    parsed: bool = False
    """Calls are reported as calls. With the choice `none` the model sees the tools, but what it writes is text."""


def offered_tools(body: ChatBody) -> OfferedTools:
    """Return the tools of a body. Raises `RequestError` naming the field."""
    tools = dict(enumerate(body.tools or ()))
    choice = _choice(body, [tool.function.name for tool in tools.values()])
    if isinstance(body.tool_choice, AllowedToolsChoice):
        allowed = {each.function.name for each in body.tool_choice.allowed_tools.tools}
        tools = {index: tool for index, tool in tools.items() if tool.function.name in allowed}
    definitions = [_definition(tool) for tool in tools.values()]
    encoded = encode_tools(definitions, [f"tools[{index}].function" for index in tools])
    return OfferedTools(encoded, choice, bool(encoded) and choice.mode != "none")


def _definition(tool: ChatTool) -> ToolDefinition:
    function = tool.function
    return ToolDefinition(function.name, function.description or "", function.parameters, bool(function.strict))


def _choice(body: ChatBody, known: list[str]) -> ToolChoice:
    parallel = body.parallel_tool_calls is not False
    wanted = body.tool_choice
    if wanted is None or isinstance(wanted, str):
        mode = wanted or "auto"
        if mode == "required" and not known:
            raise invalid("tool_choice", "`tool_choice` `required` goes with `tools` only")
        return ToolChoice(mode, parallel=parallel)
    if isinstance(wanted, NamedToolChoice):
        _check_known(wanted.function, known, "tool_choice.function.name")
        return ToolChoice("required", wanted.function.name, parallel)
    for index, each in enumerate(wanted.allowed_tools.tools):
        _check_known(each.function, known, f"tool_choice.allowed_tools.tools[{index}].function.name")
    return ToolChoice(wanted.allowed_tools.mode, parallel=parallel)


def _check_known(tool: ChatToolName, known: list[str], field: str) -> None:
    if tool.name not in known:
        raise invalid(field, f"`{field}` is not the name of one of the `tools`")
