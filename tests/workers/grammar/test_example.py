"""Examples of what JSON schemas allow."""

import json
from typing import Any

import pytest

from workers.grammar.example import MAX_DEPTH, MAX_PATH, MAX_VALUES, example_of

NESTED: Any = {"type": "string"}
for _ in range(MAX_DEPTH + 2):
    NESTED = {"type": "object", "properties": {"in": NESTED}}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        pytest.param({"type": "string"}, "a", id="string"),
        pytest.param({"type": ["integer", "null"]}, 1, id="types"),
        pytest.param({"type": "number"}, 1.5, id="number"),
        pytest.param({"const": {"x": 1}}, {"x": 1}, id="const"),
        pytest.param({"const": "x" * MAX_VALUES}, None, id="long"),
        pytest.param({}, None, id="any"),
        pytest.param({"items": 5, "type": "array"}, [None, None], id="malformed"),
        pytest.param({"type": "array", "items": {"enum": ["a", "b", "c"]}}, ["a", "b"], id="enum"),
        pytest.param({"type": "array", "prefixItems": [{"type": "boolean"}, {"const": 2}]}, [True, 2], id="tuple"),
        pytest.param({"anyOf": [{"type": "integer"}, {"type": "string"}]}, 1, id="alternatives"),
        pytest.param(
            {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"properties": {"z": {}, "a": {"type": "integer"}}}}},
            {"z": None, "a": 1},
            id="reference",
        ),
        pytest.param({"$ref": "#"}, None, id="circle"),
        pytest.param({"$ref": "https://example.com/schema"}, None, id="elsewhere"),
        pytest.param({"type": "object"}, {}, id="object"),
    ],
)
def test_an_example_has_the_names_and_values_of_its_schema(schema: dict[str, Any], expected: Any) -> None:
    assert json.loads(example_of(schema)) == expected


def test_an_example_is_bounded() -> None:
    tree = {"type": "object", "properties": {str(at): {"$ref": "#"} for at in range(10)}}
    assert example_of(tree).count(":") <= MAX_VALUES
    wide = {"type": "object", "properties": {f"{at:0200}": {"type": "integer"} for at in range(1000)}}
    assert len(example_of(wide)) <= MAX_VALUES * (MAX_VALUES + 10)
    deep = example_of(NESTED)
    assert deep.count("{") == MAX_DEPTH + 1
    assert "null" in deep


def test_a_long_value_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema has 512 KiB, of which each of 128 references would have taken some 20 ms."""
    written: list[object] = []
    dumps = json.dumps

    def noted(value: object, **options: Any) -> str:
        written.append(value)
        return dumps(value, **options)

    monkeypatch.setattr(json, "dumps", noted)
    long = list(range(MAX_VALUES))
    schema = {"type": "array", "prefixItems": [{"$ref": "#/x"}] * MAX_VALUES, "x": {"const": long}}
    assert json.loads(example_of(schema)) == [None] * (MAX_VALUES - 1)
    assert sum(value is long for value in written) == 1


def test_a_reference_may_have_so_many_characters() -> None:
    for extra, expected in ((0, 1), (1, None)):
        name = "a" * (MAX_PATH - len("#/") + extra)
        assert json.loads(example_of({"$ref": f"#/{name}", name: {"const": 1}})) == expected
