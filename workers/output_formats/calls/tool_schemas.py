"""The tools of a request as the parsers of calls need them: their names and the types of their parameters."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from workers.output_formats.calls.characters import Malformed
from workers.output_formats.calls.values import MAX_DEPTH, as_json, escaped
from workers.output_formats.formats.model_format import Notation

MAX_UNIONS = 16
"""Levels of unions and references in which types are looked for."""
_PYTHON = Notation(python=True, strict=True)
_OF_VALUE = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_TYPES = frozenset((*_OF_VALUE.values(), "array", "object"))


class ToolSchemas:
    """Parameter types of the tools of one request."""

    def __init__(self, tools: Iterable[Mapping[str, Any]] = ()) -> None:
        """`tools` in OpenAI's form. What is not in it is left out: the gateway has checked them."""
        functions = [each.get("function", each) for each in tools]
        self._parameters = {
            str(each["name"]): each.get("parameters")
            for each in functions
            if isinstance(each, Mapping) and "name" in each
        }
        self.names = frozenset(self._parameters)
        self._types: dict[tuple[str, str], tuple[str, ...]] = {}
        """Those that were looked for, by tool and parameter."""

    def types(self, tool: str, parameter: str) -> tuple[str, ...] | None:
        """Return the JSON types that a parameter may have; None for a parameter that no schema names."""
        schema = self._parameters.get(tool)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if not isinstance(properties, Mapping) or parameter not in properties:
            return None
        place = tool, parameter
        if place not in self._types:
            self._types[place] = tuple(_Types(schema).of(properties[parameter]))
        return self._types[place]


class _Types:
    """Finds the types of schemas under one root. Each schema is looked at once: references can make a small one an
    exponentially large tree."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._found: dict[int, Collection[str]] = {}
        """By the identity of the schema."""

    def of(self, schema: Any, level: int = 0) -> Collection[str]:
        """Return the types without repetition. Beyond JSON's, they are strings."""
        if not isinstance(schema, Mapping) or level > MAX_UNIONS:
            return ()
        if (known := self._found.get(id(schema))) is None:
            self._found[id(schema)] = ()  # for a schema that contains itself
            known = self._found[id(schema)] = dict.fromkeys(self._each(schema, level))
        return known

    def _each(self, schema: Mapping[str, Any], level: int) -> Iterator[str]:
        if isinstance(reference := schema.get("$ref"), str):
            yield from self.of(_referenced(reference, self._root), level + 1)
            return
        declared = schema.get("type")
        names = declared if isinstance(declared, list) else [declared]
        types = [each if each in _TYPES else "string" for each in names if isinstance(each, str)]
        for union in ("anyOf", "oneOf", "allOf"):
            choices = schema.get(union)
            for choice in choices if isinstance(choices, list) else ():
                types += self.of(choice, level + 1)
        if not types:
            values = schema.get("enum", [schema["const"]] if "const" in schema else [])
            found = values if isinstance(values, list) else []
            types += [_OF_VALUE[type(each)] for each in found if type(each) in _OF_VALUE]
        yield from types
        if schema.get("nullable"):
            yield "null"


def _referenced(reference: str, root: Any) -> Any:
    """Return the definition that a reference names; None for another reference."""
    start, _, rest = reference.partition("/")
    place, _, name = rest.partition("/")
    definitions = root.get(place) if start == "#" and place in ("$defs", "definitions") else None
    return definitions.get(name) if isinstance(definitions, Mapping) else None


def cast(raw: str, types: tuple[str, ...] | None, *, json_untyped: bool) -> str:
    """Return the JSON of a parameter that was written as text. What is of none of its types is a string."""
    text = raw.strip()
    if types is None:
        return (_loose(text, None) if json_untyped else None) or quoted(raw)
    if not types:  # a schema without a type
        return _loose(text, "{[") or quoted(raw)
    for each in types:
        if (found := _cast_to(text, each)) is not None:
            return found
    return quoted(raw)


def quoted(text: str) -> str:
    """Return a text as a JSON string."""
    return f'"{escaped(text)}"'


def _cast_to(text: str, kind: str) -> str | None:
    match kind:
        case "integer":
            return _integer(text)
        case "number":
            return _number(text)
        case "boolean":
            return {"true": "true", "1": "true", "false": "false", "0": "false"}.get(text.lower())
        case "null":
            return "null" if text in ("null", "None") else None
        case "object":
            return _loose(text, "{")
        case "array":
            return _loose(text, "[")
    return None


def _not_finite(text: str) -> None:
    raise ValueError(text)


def _integer(text: str) -> str | None:
    """A whole number may be written as a float."""
    number = _number(text)
    if number is None or number.lstrip("-").isdigit():
        return number
    value = float(number)
    return str(int(value)) if value.is_integer() else None


def _number(text: str) -> str | None:
    found = _loose(text, "-+.0123456789")
    if found in (None, "null"):  # not finite
        return None
    try:
        return found if abs(json.loads(str(found))) < float("inf") else None
    except (ValueError, TypeError, OverflowError):
        return None


def _loose(text: str, first: str | None) -> str | None:
    """Return a text as JSON if it is a value of JSON or of Python. It may begin with the characters `first`."""
    if not text or (first is not None and text[0] not in first):
        return None
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        try:
            json.loads(text, parse_constant=_not_finite)
        except ValueError:
            pass
        else:
            return text
    try:
        return as_json(text, _PYTHON)
    except Malformed:
        return None
