"""Structured output: the fields of OpenAI, vLLM and llama.cpp that constrain an answer, and the grammar that they ask
for."""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.errors import RequestError, invalid
from gateway.generation.grammar import bounded, json_schema_grammar
from gateway.generation.unsupported_options import unsupported
from gateway.openai.ignored import IgnoredOptions
from protocol.bounds import MAX_GRAMMAR
from protocol.errors import ErrorCode
from protocol.request import Grammar

MAX_SCHEMA_NAME = 128
MAX_CHOICES = 65_536
MAX_SCHEMA_TEXT = 4096

Schema = dict[str, Any] | bool
Source = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR)]
Choices = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR)], ...], Meta(min_length=1, max_length=MAX_CHOICES)
]


class TextFormat(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text: the default."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """A JSON object. `schema` is an addition of llama.cpp and others."""

    schema: Schema | None = None


class JsonSchema(Struct, forbid_unknown_fields=True):
    """A schema as OpenAI's clients send it. Answers follow it exactly, with `strict` and without."""

    schema: Schema
    name: Annotated[str, Meta(max_length=MAX_SCHEMA_NAME)] | None = None
    description: Annotated[str, Meta(max_length=MAX_SCHEMA_TEXT)] | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """JSON that a schema allows."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """vLLM's name of all kinds of constraints, of which a request has one. `grammar` is a Lark grammar."""

    json: Schema | str | None = None
    regex: Source | None = None
    choice: Choices | None = None
    grammar: Source | None = None
    json_object: bool | None = None
    # Refused when set: whitespace is bounded, and a schema's `x-guidance` can set it.
    disable_additional_properties: Any = None
    disable_any_whitespace: Any = None
    disable_fallback: Any = None
    structural_tag: Any = None
    whitespace_pattern: Any = None


class StructuredFields(IgnoredOptions, kw_only=True):
    """The fields of a body that constrain the answer: one of them at most."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None
    guided_regex: Source | None = None
    guided_choice: Choices | None = None
    guided_grammar: Source | None = None
    json_schema: Schema | None = None


_REFUSED = (
    "disable_additional_properties",
    "disable_any_whitespace",
    "disable_fallback",
    "structural_tag",
    "whitespace_pattern",
)


def grammar_of(body: StructuredFields) -> Grammar | None:
    """Return the grammar of a request; None if any text may be generated. Raises `RequestError`."""
    grammar: Grammar | None = None
    for each in _grammars(body):
        if grammar is not None:
            raise invalid(
                each.field, f"`{each.field}` and `{grammar.field}` both constrain the answer; send one of them"
            )
        grammar = each
    return None if grammar is None else bounded(grammar)


def _grammars(body: StructuredFields) -> Iterator[Grammar]:
    match body.response_format:
        case JsonObjectFormat(schema=None):
            yield Grammar("json_object", "", "response_format")
        case JsonObjectFormat(schema=schema):
            yield json_schema_grammar(schema, "response_format.schema")
        case JsonSchemaFormat(json_schema=given):
            yield json_schema_grammar(given.schema, "response_format.json_schema.schema")
    if body.structured_outputs is not None:
        yield from _structured_outputs(body.structured_outputs)
    if body.guided_json is not None:
        yield _json(body.guided_json, "guided_json")
    if body.guided_regex is not None:
        yield Grammar("regex", body.guided_regex, "guided_regex")
    if body.guided_choice is not None:
        yield _choice(body.guided_choice, "guided_choice")
    if body.guided_grammar is not None:
        yield _lark(body.guided_grammar, "guided_grammar")
    if body.json_schema is not None:
        yield json_schema_grammar(body.json_schema, "json_schema")


def _structured_outputs(given: StructuredOutputs) -> Iterator[Grammar]:
    at = "structured_outputs"
    for name in _REFUSED:
        if getattr(given, name) not in (None, False):
            field = f"{at}.{name}"
            raise RequestError(ErrorCode.UNSUPPORTED, unsupported(field, [False]), field=field)
    found: list[Grammar] = []
    if given.json is not None:
        found.append(_json(given.json, f"{at}.json"))
    if given.regex is not None:
        found.append(Grammar("regex", given.regex, f"{at}.regex"))
    if given.choice is not None:
        found.append(_choice(given.choice, f"{at}.choice"))
    if given.grammar is not None:
        found.append(_lark(given.grammar, f"{at}.grammar"))
    if given.json_object:
        found.append(Grammar("json_object", "", f"{at}.json_object"))
    if not found:
        raise invalid(at, f"`{at}` must have one of `json`, `regex`, `choice`, `grammar` and `json_object`")
    yield from found


def _json(schema: Schema | str, field: str) -> Grammar:
    """The grammar of a schema, which vLLM also takes as JSON in a string."""
    if isinstance(schema, str):
        try:
            return json_schema_grammar(msgspec.json.decode(schema), field)
        except (msgspec.DecodeError, RecursionError) as error:
            raise invalid(field, f"`{field}` is not JSON: {str(error)[:200]}") from error
    return json_schema_grammar(schema, field)


def _choice(choices: tuple[str, ...], field: str) -> Grammar:
    return Grammar("choice", msgspec.json.encode(choices).decode(), field)


def _lark(source: str, field: str) -> Grammar:
    if "::=" in source:
        raise invalid(field, f"`{field}` must be a Lark grammar; it looks like GBNF, which is not known here")
    return Grammar("lark", source, field)
