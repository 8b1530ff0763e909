"""Reads the `response_template` that checkpoints ship in tokenizer_config.json (transformers' chat_parsing).

Its fields describe regions by literals or by regular expressions. Of the latter, those are read that consist of
literals, optional white space and named groups, which is how published templates use them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from workers.output_formats.formats.model_format import (
    HeaderCall,
    Notation,
    ObjectCall,
    ParameterCall,
    ReasoningFormat,
    ToolFormat,
)

_TOKEN = re.compile(
    r"""(?P<space>\\s[*+]) | \(\?P<(?P<group>\w+)> (?:[^()\\]|\\.)* \) | \\(?P<escaped>[^\w]) | \\(?P<newline>n)
    | (?P<plain>[^\\()\[\]{}*+?|^$.])""",
    re.VERBOSE | re.DOTALL,
)
REASONING = ("reasoning_content", "reasoning", "thinking")


class UnreadableTemplate(ValueError):
    """Raised for a template that uses what is not read here. The text names it."""


def read_response_template(template: Any) -> tuple[ReasoningFormat | None, ToolFormat | None]:
    """Return the formats of reasoning and of tool calls. Raises `UnreadableTemplate`."""
    fields = template.get("fields") if isinstance(template, Mapping) else None
    if not isinstance(fields, Mapping) or template.get("version", 1) != 1:
        raise UnreadableTemplate("it is not of version 1 with fields")
    reasoning = None
    for name in REASONING:
        field = fields.get(name)
        if isinstance(field, Mapping):
            reasoning = ReasoningFormat(_literal(field, "open"), _literal(field, "close"))
            break
    calls = fields.get("tool_calls")
    return reasoning, _tool_format(calls) if isinstance(calls, Mapping) else None


def _tool_format(field: Mapping[str, Any]) -> ToolFormat:
    opening = _pieces(field, "open")
    args = field.get("content_args", {})
    match field.get("content", "text"), opening:
        case "json", [marker]:
            return ToolFormat((ObjectCall(),), open=marker, close=_close(field))
        case "json", [marker, after]:
            before, marker = _before(marker)
            notation = _notation(args)
            call = HeaderCall(before=before, separator=after, notation=notation)
            return ToolFormat((call,), open=marker, close=_close(field))
        case "xml-inline", [marker, after]:
            keys = _split(str(args.get("tag_pattern", "")))
            if len(keys) != 3:
                raise UnreadableTemplate("tool_calls: content_args.tag_pattern has no key and value")
            name_open, marker = _before(marker)
            closing = _pieces(field, "close")[0]
            call_close, _, close = closing.rpartition("<")
            tagged = ParameterCall(
                name_open=name_open,
                name_close=after,
                key_open=keys[0],
                key_close=keys[1],
                value_close=keys[2],
                call_close=call_close,
            )
            return ToolFormat((tagged,), open=marker, close="<" + close)
    raise UnreadableTemplate(f"tool_calls: content {field.get('content', 'text')!r} is not read after this opening")


def _before(text: str) -> tuple[str, str]:
    """Split what precedes a name into what belongs to the call and the marker before it."""
    at = text.find(">") + 1
    if not at:
        raise UnreadableTemplate("tool_calls: the opening has no marker before the name")
    return text[at:], text[:at]


def _notation(args: Mapping[str, Any]) -> Notation:
    delimiters: list[str] = []
    for pair in args.get("string_delims", ()):
        if not (isinstance(pair, Sequence) and len(pair) == 2 and pair[0] == pair[1] and isinstance(pair[0], str)):
            raise UnreadableTemplate("tool_calls: string_delims that differ are not read")
        delimiters.append(pair[0])
    return Notation(delimiters=tuple(delimiters), bare_keys=bool(args.get("unquoted_keys", False)))


def _close(field: Mapping[str, Any]) -> str:
    return _pieces(field, "close")[0] if "close" in field or "close_pattern" in field else ""


def _literal(field: Mapping[str, Any], name: str) -> str:
    pieces = _pieces(field, name)
    if len(pieces) != 1 or not pieces[0]:
        raise UnreadableTemplate(f"{name} is not one literal")
    return pieces[0]


def _pieces(field: Mapping[str, Any], name: str) -> list[str]:
    """Return the literals around the named groups of an anchor."""
    literal = field.get(name)
    if isinstance(literal, list) and len(literal) == 1:
        literal = literal[0]
    if isinstance(literal, str):
        return [literal]
    pattern = field.get(f"{name}_pattern")
    if not isinstance(pattern, str):
        raise UnreadableTemplate(f"{name} is neither one literal nor a pattern")
    return _split(pattern)


def _split(pattern: str) -> list[str]:
    pieces, at = [""], 0
    while at < len(pattern):
        match = _TOKEN.match(pattern, at)
        if match is None:
            raise UnreadableTemplate(f"the pattern {pattern!r} is not read from character {at}")
        if match["group"]:
            pieces.append("")
        elif match["newline"]:
            pieces[-1] += "\n"
        elif not match["space"]:
            pieces[-1] += match["escaped"] or match["plain"]
        at = match.end()
    return pieces
