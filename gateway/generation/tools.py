"""The tools of a request, as every API dialect passes them on."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from gateway.errors import invalid
from protocol.bounds import MAX_TOOLS_JSON

MAX_TOOLS = 256
MAX_DESCRIPTION = 32 * 1024
MAX_DEPTH = 64
"""Levels of a JSON schema. Templates and grammars recurse over them."""
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
NAME_RULE = "1 to 128 letters, digits, `_`, `-`, `.` and `:`"


class ToolDefinition(NamedTuple):
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    """The JSON schema of its arguments; None takes any object."""
    strict: bool = False
    """Calls of it follow the schema exactly."""


def encode_tools(tools: Sequence[ToolDefinition], paths: Sequence[str], schema: str = "parameters") -> str:
    """Return the `tools_json` of a `ChatInput`: a JSON list in OpenAI's form, which chat templates expect.

    `paths` are the fields of the tools in the request, and `schema` the one of their parameters, for errors. Raises
    `RequestError` naming the field.
    """
    if len(tools) > MAX_TOOLS:
        raise invalid(paths[MAX_TOOLS], f"`{paths[MAX_TOOLS]}`: a request may have {MAX_TOOLS} tools")
    known: set[str] = set()
    for tool, path in zip(tools, paths, strict=True):
        _check(tool, path, f"{path}.{schema}")
        if tool.name in known:
            raise invalid(f"{path}.name", f"`{path}.name` is the name of another tool as well")
        known.add(tool.name)
    if not tools:
        return ""
    text = msgspec.json.encode([_definition(tool) for tool in tools]).decode()
    if len(text) > MAX_TOOLS_JSON:
        raise invalid(paths[0], f"the tools have {len(text)} characters; {MAX_TOOLS_JSON} are allowed")
    return text


def _check(tool: ToolDefinition, path: str, schema: str) -> None:
    if not _NAME.fullmatch(tool.name):
        raise invalid(f"{path}.name", f"`{path}.name` must be {NAME_RULE}")
    if len(tool.description) > MAX_DESCRIPTION:
        raise invalid(f"{path}.description", f"`{path}.description` has over {MAX_DESCRIPTION} characters")
    if tool.parameters is not None:
        check_depth(tool.parameters, schema)
        if tool.parameters.get("type", "object") != "object":
            raise invalid(f"{schema}.type", f"`{schema}.type` must be `object`")


def check_depth(value: Any, path: str) -> None:
    """Raise `RequestError` for a JSON value of more than `MAX_DEPTH` levels."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            each
            for outer in level
            for each in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(each, dict | list)
        ]
        if not level:
            return
    raise invalid(path, f"`{path}` is nested more than {MAX_DEPTH} levels deep")


def _definition(tool: ToolDefinition) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}
