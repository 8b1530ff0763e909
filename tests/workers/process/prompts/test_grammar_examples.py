"""Examples of JSON schemas in the tokens of a model."""

import json

import pytest

from protocol.request import Grammar
from workers.process.prompts import grammar_examples
from workers.process.prompts.grammar_examples import MAX_TOKENS, GrammarExamples
from workers.text.byte_tokenizer import ByteTokenizer

SCHEMA = json.dumps({"type": "object", "properties": {"name": {"type": "string"}}})


def test_a_schema_has_an_example_and_another_grammar_has_none() -> None:
    examples = GrammarExamples(ByteTokenizer(), 257)
    assert bytes(examples.of(Grammar("json_schema", SCHEMA))) == b'{"name": "a"}'
    assert examples.of(Grammar("json_schema", "no JSON")) == ()
    assert examples.of(Grammar("regex", "a*")) == examples.of(None) == ()
    assert GrammarExamples(None, 257).of(Grammar("json_schema", SCHEMA)) == ()
    assert GrammarExamples(ByteTokenizer(), 99).of(Grammar("json_schema", SCHEMA)) == (), "n is 110"


def test_examples_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_examples, "MAX_EXAMPLES", 2)
    examples = GrammarExamples(ByteTokenizer(), 257)
    for at in range(5):
        examples.of(Grammar("json_schema", json.dumps({"const": at})))
    assert [json.loads(source)["const"] for source in examples._known] == [3, 4]
    long = json.dumps({"type": "array", "prefixItems": [{"const": "abcdefg"}] * 100})
    assert len(examples.of(Grammar("json_schema", long))) == MAX_TOKENS
