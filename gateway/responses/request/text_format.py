"""The format of the answer's text: plain, a JSON object, or JSON that follows a schema."""

from typing import Any

from gateway.errors import invalid
from gateway.generation.grammar import json_schema_grammar
from gateway.responses.request.schema import ResponseTextFormat
from protocol.request import Grammar

FIELD = "text.format"


def decode_format(wanted: ResponseTextFormat | None) -> Grammar | None:
    """Return the grammar of a format; None for plain text. Raises `RequestError`."""
    if wanted is None:
        return None
    if wanted.type != "json_schema":
        for name in ("name", "schema", "description", "strict"):
            if getattr(wanted, name) is not None:
                raise invalid(f"{FIELD}.{name}", f"`{FIELD}.{name}` goes with `type: json_schema` only")
        return None if wanted.type == "text" else Grammar("json_object", "", FIELD)
    for name in ("name", "schema"):
        if getattr(wanted, name) is None:
            raise invalid(f"{FIELD}.{name}", f"`{FIELD}.{name}` is required in a format of type json_schema")
    return json_schema_grammar(wanted.schema, f"{FIELD}.schema")


def echo_format(wanted: ResponseTextFormat | None) -> dict[str, Any]:
    """The format as the response repeats it."""
    if wanted is None or wanted.type != "json_schema":
        return {"type": "text" if wanted is None else wanted.type}
    return {
        "type": "json_schema",
        "name": wanted.name,
        "description": wanted.description,
        "schema": wanted.schema,
        "strict": bool(wanted.strict),
    }
