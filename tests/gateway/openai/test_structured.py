"""Fields that constrain an answer: the grammar that each of them asks for, and what is refused."""

import json
from typing import Any

import pytest

from gateway.generation.request import GenerationRequest
from protocol.bounds import MAX_GRAMMAR
from protocol.errors import ErrorCode
from protocol.request import Grammar
from tests.gateway.openai.bodies import chat, completion, refusal

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
ENCODED = json.dumps(SCHEMA, separators=(",", ":"))
LARK = 'start: "a" | "b"'


def json_schema(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA} | fields}


def outputs(**fields: Any) -> dict[str, Any]:
    return {"structured_outputs": fields}


ACCEPTED: list[tuple[dict[str, Any], Grammar | None]] = [
    ({}, None),
    ({"response_format": None}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, Grammar("json_object", "", "response_format")),
    (
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        Grammar("json_schema", ENCODED, "response_format.schema"),
    ),
    *(
        (
            {"response_format": json_schema(**fields)},
            Grammar("json_schema", ENCODED, "response_format.json_schema.schema"),
        )
        for fields in ({}, {"strict": True}, {"strict": False}, {"strict": None, "description": "of x"}, {"name": None})
    ),
    (outputs(json=SCHEMA), Grammar("json_schema", ENCODED, "structured_outputs.json")),
    (outputs(json=json.dumps(SCHEMA)), Grammar("json_schema", ENCODED, "structured_outputs.json")),
    (outputs(json=True), Grammar("json_schema", "true", "structured_outputs.json")),
    (outputs(regex="a+"), Grammar("regex", "a+", "structured_outputs.regex")),
    (outputs(choice=["a", "b"]), Grammar("choice", '["a","b"]', "structured_outputs.choice")),
    (outputs(grammar=LARK), Grammar("lark", LARK, "structured_outputs.grammar")),
    (outputs(json_object=True), Grammar("json_object", "", "structured_outputs.json_object")),
    (
        outputs(regex="a", json=None, json_object=False, disable_any_whitespace=False),
        Grammar("regex", "a", "structured_outputs.regex"),
    ),
    ({"guided_json": SCHEMA}, Grammar("json_schema", ENCODED, "guided_json")),
    ({"guided_json": ENCODED}, Grammar("json_schema", ENCODED, "guided_json")),
    ({"guided_regex": "a+"}, Grammar("regex", "a+", "guided_regex")),
    ({"guided_choice": ["a"]}, Grammar("choice", '["a"]', "guided_choice")),
    ({"guided_grammar": LARK}, Grammar("lark", LARK, "guided_grammar")),
    ({"json_schema": SCHEMA}, Grammar("json_schema", ENCODED, "json_schema")),
    ({"guided_choice": ["a"], "response_format": {"type": "text"}}, Grammar("choice", '["a"]', "guided_choice")),
]


@pytest.mark.parametrize("call", [completion, chat])
@pytest.mark.parametrize(("fields", "grammar"), ACCEPTED, ids=[json.dumps(fields) for fields, _ in ACCEPTED])
def test_the_grammar_of_a_request(call: Any, fields: dict[str, Any], grammar: Grammar | None) -> None:
    request: GenerationRequest = call(**fields, n=2)
    assert [sequence.grammar for sequence in request.sequences] == [grammar] * 2


DEEP: dict[str, Any] = {}
for _ in range(70):
    DEEP = {"items": DEEP}

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "regex"}}, "response_format.type", "takes text, json_object or json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
    ({"response_format": json_schema(schema=None)}, "response_format.json_schema.schema", "Expected"),
    ({"response_format": json_schema(schema=[1])}, "response_format.json_schema.schema", "Expected"),
    ({"response_format": json_schema(extra=1)}, "response_format.json_schema.extra", "not a parameter"),
    ({"response_format": json_schema(schema=DEEP)}, "response_format.json_schema.schema", "64 levels"),
    (outputs(), "structured_outputs", "must have one of"),
    (outputs(json_object=False), "structured_outputs", "must have one of"),
    (outputs(json="{"), "structured_outputs.json", "is not JSON"),
    (outputs(json="3"), "structured_outputs.json", "must be a JSON schema"),
    (outputs(choice=[]), "structured_outputs.choice", "length >= 1"),
    (outputs(choice=[""]), "structured_outputs.choice", "length >= 1"),
    (outputs(regex=""), "structured_outputs.regex", "length >= 1"),
    (outputs(regex="a", choice=["b"]), "structured_outputs.choice", "both constrain"),
    (outputs(grammar='root ::= "a"'), "structured_outputs.grammar", "GBNF"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "both constrain"),
    ({"response_format": {"type": "json_object"}, "json_schema": SCHEMA}, "json_schema", "both constrain"),
    ({"guided_regex": "a" * (MAX_GRAMMAR + 1)}, "guided_regex", "length <="),
    ({"guided_choice": ["a" * 300_000, "b" * 300_000]}, "guided_choice", "524288 are allowed"),
    ({"guided_json": {"enum": ["x" * 10_000_000]}}, "guided_json", "524288 are allowed"),
]


@pytest.mark.parametrize("call", [completion, chat])
@pytest.mark.parametrize(("fields", "field", "text"), REFUSED, ids=[f"{field}-{text}" for _, field, text in REFUSED])
def test_a_refusal_names_the_field(call: Any, fields: dict[str, Any], field: str, text: str) -> None:
    error = refusal(call, **fields)
    assert error.code != ErrorCode.UNSUPPORTED
    assert error.field is not None
    assert error.field.startswith(field)
    assert text in str(error)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        (outputs(regex="a", whitespace_pattern=" ?"), "structured_outputs.whitespace_pattern"),
        (outputs(json=SCHEMA, disable_any_whitespace=True), "structured_outputs.disable_any_whitespace"),
        (outputs(structural_tag="{}"), "structured_outputs.structural_tag"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    error = refusal(chat, **fields)
    assert (error.code, error.field) == (ErrorCode.UNSUPPORTED, field)
