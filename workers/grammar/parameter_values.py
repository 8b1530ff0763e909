"""Values of tagged parameters, for formats that write strings as they are and other values as JSON."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_DEFINITIONS = ("$defs", "definitions")
_STRING_RULES = ("pattern", "format", "minLength", "maxLength")
_MOST_REFERENCES = 16


class ParameterError(Exception):
    """Raised for a schema that cannot be followed in tagged parameters."""


class TaggedParameter(NamedTuple):
    """A parameter of a tool and what its value may be: one of `choices`, JSON of a `schema`, or any text."""

    name: str
    required: bool
    choices: tuple[str, ...] = ()
    schema: dict[str, Any] | None = None


def parameters_of(schema: Mapping[str, Any], *, strict: bool) -> Iterator[TaggedParameter]:
    """Return the parameters of a tool, in the order of its schema. Raises `ParameterError`."""
    properties = schema.get("properties")
    required = schema.get("required")
    known = properties if isinstance(properties, dict) else {}
    needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    for name in dict.fromkeys([*known, *needed]):
        yield _parameter(name, known.get(name, True), schema, name in needed, strict)


def _parameter(name: str, value: Any, root: Mapping[str, Any], required: bool, strict: bool) -> TaggedParameter:
    resolved = _resolved(value, root)
    choices = _choices(resolved)
    if choices:
        return TaggedParameter(name, required, choices)
    types = _types(resolved, root)
    if types is not None and "string" not in types:
        return TaggedParameter(name, required, schema=_standalone(value, root))
    if strict and (rules := [rule for rule in _STRING_RULES if rule in resolved]):
        raise ParameterError(f"the model's format of tool calls cannot follow `{rules[0]}` of the parameter {name!r}")
    return TaggedParameter(name, required)


def _resolved(value: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema in place of a reference to it, or of an `allOf` with one schema."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(value, dict):
            return {}
        reference, parts = value.get("$ref"), value.get("allOf")
        if isinstance(reference, str):
            value = _referenced(reference, root)
        elif isinstance(parts, list) and len(parts) == 1:
            value = parts[0]
        else:
            return value
    raise ParameterError("the references of a schema form a loop")


def _referenced(reference: str, root: Mapping[str, Any]) -> Any:
    start, _, rest = reference.partition("/")
    place, _, name = rest.partition("/")
    definitions = root.get(place)
    if start == "#" and place in _DEFINITIONS and isinstance(definitions, dict) and name in definitions:
        return definitions[name]
    raise ParameterError(f"the reference {reference[:100]!r} is not one to `#/$defs/NAME`, which is there")


def _choices(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts of a value that is one of several strings; nothing for any other."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return ()
    return tuple(dict.fromkeys(values))


def _types(schema: Mapping[str, Any], root: Mapping[str, Any]) -> set[str] | None:
    """The JSON types of a value; None if any is possible."""
    found = schema.get("type")
    if isinstance(found, str):
        return {found}
    if isinstance(found, list):
        return {each for each in found if isinstance(each, str)}
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return {"string" if isinstance(value, str) else "other" for value in values}
    variants = schema.get("anyOf", schema.get("oneOf"))
    if not isinstance(variants, list):
        return {"object"} if "properties" in schema else None
    union: set[str] = set()
    for variant in variants:
        types = _types(_resolved(variant, root), root)
        if types is None:
            return None
        union |= types
    return union


def _standalone(value: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with the definitions that it may refer to."""
    schema = {place: root[place] for place in _DEFINITIONS if place in root} | (
        value if isinstance(value, dict) else {}
    )
    for reference in _references(schema):
        _referenced(reference, root)
    return schema


def _references(value: Any) -> Iterator[str]:
    text = json.dumps(value)
    if '"$ref"' not in text:
        return
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            if isinstance(each.get("$ref"), str):
                yield each["$ref"]
            pending += each.values()
        elif isinstance(each, list):
            pending += each
