"""Grammars of tool calls in a model's own format, in llguidance's variant of Lark."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from protocol.bounds import MAX_TOOL_CALLS
from protocol.request import ToolChoice
from workers.grammar.call_syntax import CallSyntax, ParameterSyntax
from workers.grammar.parameter_values import ParameterError, TaggedParameter, parameters_of
from workers.grammar.source import WHITESPACE

_TEXT = r"/(.|\n)*/"
"""Any text. Tokens that are markers are no text."""
_NO_CALL = r"/([^{](.|\n)*)?/"
"""Text in a format whose calls are recognized by their first character."""
_KEY = "/[A-Za-z0-9_.:-]+/"


_PLACE = re.compile(r"^(?:at )?(\d+)\(\d+\): ")
"""The line and the column at which llguidance found an error."""
_CALL = re.compile(r"call_\d+: \"([A-Za-z0-9_.:-]+)")


class ToolGrammarError(Exception):
    """Raised for tools whose calls cannot be constrained."""


class _Tool(NamedTuple):
    name: str
    parameters: dict[str, Any]
    strict: bool


def tool_grammar(
    syntax: CallSyntax,
    tools_json: str,
    choice: ToolChoice,
    markers: Mapping[str, int],
    text: str = "",
    *,
    reasons: bool = False,
) -> str:
    """Return the grammar of an answer with tools; empty if the answer is not constrained.

    With `required` the answer is calls only. With `auto` it is constrained if a tool is strict, and text may precede
    the calls, or if there is an expression for its `text`, and then it is that text or calls. Arguments follow the
    schemas of the tools, of which those that are not strict may have keywords that are not supported. `markers` are the
    tokens of the model that are markers, with their ids: in the grammar they are tokens, not text. `reasons`: messages
    of reasoning may come first, in a format where they are part of the grammar. Raises `ToolGrammarError`.
    """
    tools = [_tool(each) for each in json.loads(tools_json or "[]")]
    if choice.name:
        tools = [tool for tool in tools if tool.name == choice.name]
    forced = choice.mode == "required"
    if forced and not tools:
        raise ToolGrammarError("there is no tool to call")
    if not forced and (choice.mode == "none" or not (text or any(tool.strict for tool in tools))):
        return ""
    # A named function is called once, as with OpenAI.
    single = syntax.single or bool(choice.name) or not choice.parallel
    try:
        return _Grammar(syntax, markers).build(tools, forced=forced, single=single, text=text, reasons=reasons)
    except ParameterError as error:
        raise ToolGrammarError(str(error)) from error


def tool_problem(lark: str, problem: str) -> str:
    """Return an error of llguidance for a grammar of `tool_grammar`, with the tool in place of a line."""
    first = problem.partition("\n")[0]
    place = _PLACE.match(first)
    if place is None:
        return first
    lines = lark.splitlines()
    line = int(place[1])
    rule = _CALL.match(lines[line - 1]) if line <= len(lines) else None
    text = first[place.end() :]
    return f"the parameters of the tool {rule[1]!r}: {text}" if rule else text


def _tool(definition: Mapping[str, Any]) -> _Tool:
    function = definition["function"]
    # A schema without a type would allow any value.
    parameters = {**(function.get("parameters") or {}), "type": "object"}
    return _Tool(function["name"], parameters, bool(function.get("strict")))


class _Grammar:
    """Collects the rules of one grammar."""

    def __init__(self, syntax: CallSyntax, markers: Mapping[str, int]) -> None:
        self._syntax = syntax
        self._markers = markers
        longest_first = sorted(markers, key=len, reverse=True)
        self._marker = re.compile("|".join(map(re.escape, longest_first)) if markers else "(?!)")
        self._rules: list[str] = []
        self._endings: dict[str, str] = {}
        """The rules of text up to an ending, by that ending."""

    def build(self, tools: Sequence[_Tool], *, forced: bool, single: bool, text: str, reasons: bool) -> str:
        """Return the grammar."""
        syntax = self._syntax
        self._rules.append("call: " + " | ".join(self._call(tool, number) for number, tool in enumerate(tools)))
        opening = syntax.section[0] + syntax.name_open
        later = self._literal(syntax.separator + syntax.name_open)
        rest = "call" if single else f"call ({later} call){{0,{MAX_TOOL_CALLS - 1}}}"
        rest = f"{rest} {self._literal(syntax.section[1])}"
        turn = f"({self._literal(syntax.turn)})? " if syntax.turn else ""
        calls = f"{self._literal(opening)} {rest}"
        if forced:
            start = turn + calls
        elif text:
            start = f"{turn}({calls} | {self._literal(syntax.text_open)} {text})"
        elif syntax.text_open:
            before, after = map(self._literal, syntax.preamble)
            start = f"{turn}(({before} {_TEXT} {after})* {calls} | {self._literal(syntax.text_open)} {_TEXT})"
        elif not syntax.marker:
            start = f"{calls} | {_NO_CALL}"
        elif syntax.marker in self._markers:
            start = f"{_TEXT} ({calls})?"
        else:
            # Such a marker is text, which ends where the marker is found.
            self._rules += [f"before_call[lazy]: TEXT {quoted(syntax.marker)}", f"TEXT: {_TEXT}"]
            start = f"before_call {self._literal(opening.removeprefix(syntax.marker))} {rest} | TEXT"
        if reasons and syntax.reasoning:
            before, after = map(self._literal, syntax.reasoning)
            start = f"({before} {_TEXT} {after})* ({start})"
        return "\n".join([f"start: {start}", *self._rules])

    def _call(self, tool: _Tool, number: int) -> str:
        """Add the rule of a call of one tool, from its name on. Returns its name."""
        syntax = self._syntax
        opening = self._literal(tool.name + syntax.name_close)
        if syntax.parameters is None:
            arguments = json_rule(tool.parameters, strict=tool.strict)
        else:
            arguments = self._parameters(syntax.parameters, tool)
        self._rules.append(f"call_{number}: {opening} {arguments} {self._literal(syntax.close)}")
        return f"call_{number}"

    def _parameters(self, syntax: ParameterSyntax, tool: _Tool) -> str:
        parameters = list(parameters_of(tool.parameters, strict=tool.strict))
        if not parameters and tool.parameters.get("additionalProperties", True) is not False:
            key = f"{self._literal(syntax.key_open)} {_KEY} {self._literal(syntax.key_close)}"
            return f"({key} {self._text_until(syntax.value_close)})*"
        return " ".join(self._parameter(syntax, each, strict=tool.strict) for each in parameters)

    def _parameter(self, syntax: ParameterSyntax, parameter: TaggedParameter, *, strict: bool) -> str:
        key = self._literal(syntax.key_open + parameter.name + syntax.key_close)
        if parameter.choices:
            value = f"({' | '.join(map(quoted, parameter.choices))}) {self._literal(syntax.value_close)}"
        elif parameter.schema is not None:
            value = f"{json_rule(parameter.schema, strict=strict)} {self._literal(syntax.value_close)}"
        else:
            value = self._text_until(syntax.value_close)
        return f"{key} {value}" if parameter.required else f"({key} {value})?"

    def _text_until(self, ending: str) -> str:
        """Any text, and the ending, at whose first occurrence it ends."""
        pieces = self._pieces(ending)
        if pieces[0] in self._markers:
            return f"{_TEXT} {self._literal(ending)}"
        rule = self._endings.get(pieces[0])
        if rule is None:
            rule = self._endings[pieces[0]] = f"text_{len(self._endings)}"
            self._rules.append(f"{rule}[suffix={quoted(pieces[0])}]: {_TEXT}")
        return f"{rule} {self._literal(''.join(pieces[1:]))}"

    def _literal(self, text: str) -> str:
        return " ".join(
            f"<[{self._markers[piece]}]>" if piece in self._markers else quoted(piece) for piece in self._pieces(text)
        )

    def _pieces(self, text: str) -> list[str]:
        """A text split into markers and what is between them; the longest marker at each place."""
        pieces: list[str] = []
        end = 0
        for found in self._marker.finditer(text):
            pieces += [text[end : found.start()], found[0]]
            end = found.end()
        return [piece for piece in [*pieces, text[end:]] if piece]


def quoted(text: str) -> str:
    """Return a text as a literal of Lark."""
    return json.dumps(text)


def json_rule(schema: Mapping[str, Any], *, strict: bool) -> str:
    """Return the rule of a JSON value. Unless it is `strict`, keywords that are not supported are ignored."""
    own = schema.get("x-guidance")
    options = {"whitespace_pattern": WHITESPACE, "lenient": not strict} | (own if isinstance(own, dict) else {})
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"
