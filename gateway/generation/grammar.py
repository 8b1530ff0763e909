"""The grammar of a request, as every API dialect passes it on. Workers compile it and refuse what they cannot."""

from typing import Any

import msgspec

from gateway.errors import invalid
from gateway.generation.tools import check_depth
from protocol.bounds import MAX_GRAMMAR
from protocol.request import Grammar


def json_schema_grammar(schema: Any, field: str) -> Grammar:
    """The grammar of answers that a JSON schema allows. Raises `RequestError` naming `field` for a schema that is too
    large, too deep, or neither an object nor a boolean."""
    if not isinstance(schema, dict | bool):
        raise invalid(field, f"`{field}` must be a JSON schema: an object")
    if isinstance(schema, dict):
        check_depth(schema, field)
    return bounded(Grammar("json_schema", msgspec.json.encode(schema).decode(), field))


def bounded(grammar: Grammar) -> Grammar:
    """Return the grammar. Raises `RequestError` if its source is too large."""
    if len(grammar.source) > MAX_GRAMMAR:
        text = f"`{grammar.field}` has {len(grammar.source)} characters; {MAX_GRAMMAR} are allowed"
        raise invalid(grammar.field, text)
    return grammar
