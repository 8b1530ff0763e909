"""Command-line options of structured output, tools and reasoning."""

from typing import Annotated, Any, Literal

import typer

from cli.config.allowed_values import shown
from cli.config.errors import InvalidOption
from cli.config.json_input import parse_json, read_json
from cli.config.number import number_of
from gateway.errors import RequestError
from gateway.generation.grammar import json_schema_grammar
from gateway.generation.tools import ToolDefinition, encode_tools
from protocol.request import Grammar

SCHEMA_FLAG, TOOLS_FLAG, REASONING_FLAG = "--json-schema", "--tools", "--reasoning"
ReasoningMode = Literal["show", "fold", "hide"]
REASONING_MODES: tuple[ReasoningMode, ...] = ("show", "fold", "hide")
DEFAULT_REASONING = "fold"
TOOL_FORM = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}'


def _panel(*names: str, help: str, metavar: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel="Output", **more)


JsonSchema = Annotated[
    str | None,
    _panel(
        SCHEMA_FLAG,
        help="Answer with JSON that this JSON schema allows. A file, or the schema itself.",
        metavar="FILE|JSON",
    ),
]
Tools = Annotated[
    str | None,
    _panel(
        TOOLS_FLAG,
        help="File with the tools that the model may call: a JSON list in the form of OpenAI's API.",
        metavar="FILE",
    ),
]
ToolCommandLine = Annotated[
    str | None,
    _panel(
        "--tool-command",
        help="Program that answers the calls: it reads a call as JSON on standard input and prints the result. "
        "Without it, you are asked for each result, and nothing is run.",
        metavar="COMMAND",
    ),
]
ToolTimeout = Annotated[
    float,
    _panel(
        "--tool-timeout-s",
        help="Seconds that the program may take for one call.",
        metavar="SECONDS",
        parser=number_of("--tool-timeout-s", float, 0.1, 3600),
    ),
]
Reasoning = Annotated[
    str,
    _panel(
        REASONING_FLAG,
        help="Show the model's reasoning, fold it to a line, or hide it.",
        metavar="|".join(REASONING_MODES),
        autocompletion=lambda incomplete: [mode for mode in REASONING_MODES if mode.startswith(incomplete)],
    ),
]


def reasoning_mode(given: str) -> ReasoningMode:
    """Return the mode of `--reasoning`. Raises `InvalidOption`."""
    for mode in REASONING_MODES:
        if given == mode:
            return mode
    raise InvalidOption(f"{REASONING_FLAG}: must be one of {', '.join(REASONING_MODES)}, not {shown(given)}")


def schema_grammar(given: str | None) -> Grammar | None:
    """Return the grammar of `--json-schema`; None without the flag. Raises `InvalidOption`."""
    if given is None:
        return None
    if given.lstrip().startswith(("{", "[")) or given.strip() in ("true", "false"):
        schema = parse_json(SCHEMA_FLAG, given, "the schema")
    else:
        schema = read_json(SCHEMA_FLAG, given)
    try:
        return json_schema_grammar(schema, SCHEMA_FLAG)
    except (RequestError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidOption(f"{SCHEMA_FLAG}: {_problem(error)}") from error


def tools_json(path: str | None) -> str:
    """Return the tools of `--tools` as a JSON list in OpenAI's form; empty without the flag. Raises `InvalidOption`."""
    if path is None:
        return ""
    given = read_json(TOOLS_FLAG, path)
    if not isinstance(given, list) or not given:
        raise InvalidOption(f"{TOOLS_FLAG}: {path} must be a JSON list of tools, each {TOOL_FORM}")
    tools = [_tool(each, f"{TOOLS_FLAG}: {path}: [{index}]") for index, each in enumerate(given)]
    try:
        return encode_tools(tools, [f"[{index}].function" for index in range(len(tools))])
    except (RequestError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidOption(f"{TOOLS_FLAG}: {path}: {_problem(error)}") from error


_KINDS: dict[str, tuple[type, str]] = {
    "name": (str, "a text"),
    "description": (str, "a text"),
    "parameters": (dict, "a JSON schema: an object"),
    "strict": (bool, "true or false"),
}
"""The type of each field of a tool, with its name in errors."""


def _problem(error: Exception) -> str:
    if isinstance(error, RequestError):
        return str(error).replace("`", "")
    return "is nested too deeply" if isinstance(error, RecursionError) else "has text that is not valid Unicode"


def _tool(given: Any, where: str) -> ToolDefinition:
    function = given.get("function") if isinstance(given, dict) and given.get("type") == "function" else None
    if not isinstance(function, dict):
        raise InvalidOption(f"{where} must have the form {TOOL_FORM}")
    unknown = function.keys() - _KINDS.keys()
    if unknown:
        raise InvalidOption(f"{where}.function.{min(unknown)} is not known; use {', '.join(_KINDS)}")
    values = {name: value for name, value in function.items() if value is not None}
    for name, value in values.items():
        kind, allowed = _KINDS[name]
        if not isinstance(value, kind):
            raise InvalidOption(f"{where}.function.{name} must be {allowed}, not {shown(value)}")
    if "name" not in values:
        raise InvalidOption(f"{where}.function.name is missing")
    return ToolDefinition(**values)
