"""Finds the part of a JSON schema that cannot be compiled, as llguidance's errors do not name it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_PROBES = 256
"""Parts of a schema that are compiled to find the one at fault."""
_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
_SINGLE = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")
_SHARED = ("$defs", "definitions", "x-guidance", "$schema")
"""Keywords of the whole schema that its parts may need."""


def locate_error(schema: Mapping[str, Any], error: str, problem_of: Callable[[Mapping[str, Any]], str]) -> str:
    """Return the path of the innermost part of `schema` that has the same error by itself; empty for the whole.

    `problem_of` compiles a schema and returns the error, empty for none.
    """
    shared = {name: schema[name] for name in _SHARED if name in schema}
    path: list[str] = []
    part: Mapping[str, Any] = schema
    probes = 0
    while True:
        for names, child in _children(part):
            probes += 1
            if probes > MAX_PROBES:
                return ".".join(path)
            if problem_of({**shared, **child}) == error:
                path += names
                part = child
                break
        else:
            return ".".join(path)


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[list[str], Mapping[str, Any]]]:
    """Yield the schemas directly inside of a schema, with the names that lead to them."""
    for keyword in _SCHEMAS:
        named = schema.get(keyword)
        for name, child in named.items() if isinstance(named, dict) else ():
            if isinstance(child, dict):
                yield [keyword, name], child
    for keyword in _LISTS:
        listed = schema.get(keyword)
        for index, child in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(child, dict):
                yield [keyword, str(index)], child
    for keyword in _SINGLE:
        child = schema.get(keyword)
        if isinstance(child, dict):
            yield [keyword], child
