"""Tools, tool choices and tool calls in the body of a chat completion."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.generation.tools import MAX_TOOLS
from gateway.openai.ignored import CacheControl
from protocol.bounds import MAX_TOOL_CALLS, Label, Name, Text


class ChatToolFunction(Struct, forbid_unknown_fields=True, kw_only=True):
    """The definition of a function: `parameters` is the JSON schema of its arguments. With `strict`, calls of it follow
    the schema exactly."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool that the model may call; functions are the only kind."""

    type: Literal["function"]
    function: ChatToolFunction
    cache_control: CacheControl | None = None


ChatTools = Annotated[tuple[ChatTool, ...], Meta(max_length=MAX_TOOLS)]


class ChatToolName(Struct, forbid_unknown_fields=True, kw_only=True):
    """The name of a tool of the request."""

    name: str


class ChatToolReference(Struct, forbid_unknown_fields=True, kw_only=True):
    """One tool of the request."""

    type: Literal["function"]
    function: ChatToolName


class NamedToolChoice(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="function"):
    """The model must call this tool."""

    function: ChatToolName


class AllowedTools(Struct, forbid_unknown_fields=True, kw_only=True):
    """Some of the tools of the request, of which the model may (`auto`) or must (`required`) call one."""

    mode: Literal["auto", "required"]
    tools: Annotated[tuple[ChatToolReference, ...], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="allowed_tools"):
    """The model gets these tools only."""

    allowed_tools: AllowedTools


ChatToolChoice = Literal["auto", "none", "required"] | NamedToolChoice | AllowedToolsChoice


class ChatCalledFunction(Struct, forbid_unknown_fields=True, kw_only=True):
    """The function that was called. `arguments` is the text of a JSON object; an empty text stands for no arguments."""

    name: Name
    arguments: Text
    # Added by clients that parse arguments; the text is what counts.
    parsed_arguments: Any = None


class ChatToolCall(Struct, forbid_unknown_fields=True, kw_only=True):
    """A call of an earlier message of the assistant."""

    id: Annotated[Label, Meta(min_length=1)]
    type: Literal["function"] = "function"
    function: ChatCalledFunction
    # Left over from chunks; the order of the list is what counts.
    index: int | None = None


ChatToolCalls = Annotated[tuple[ChatToolCall, ...], Meta(max_length=MAX_TOOL_CALLS)]
