"""Compiled grammars: all kinds, the cache, and refusals that say where."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from protocol.request import Grammar
from tests.workers.grammar.compiling import allowed, lark, matches, opened, text_of
from workers.grammar import compiler as compiler_module
from workers.grammar.compiler import GrammarCompiler
from workers.grammar.refusal import GrammarRefused
from workers.grammar.vocabulary import SpecialTokens, byte_vocabulary

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    with opened() as compiler:
        yield compiler


def schema(value: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(value), "response_format")


def choice(*texts: str) -> Grammar:
    return Grammar("choice", json.dumps(texts), "guided_choice")


@pytest.mark.parametrize(
    ("grammar", "text", "valid"),
    [
        (Grammar("json_object"), '{"a": [1, {"b": null}]}', True),
        (Grammar("json_object"), "[]", False),
        (Grammar("json_object"), '{"a": 1', False),
        (schema(PERSON), '{"name": "Zoë", "age": 3}', True),
        (schema(PERSON), '{"name":"x","age":3}', True),
        (schema(PERSON), '{\n  "name": "x",\n  "age": 3\n}', True),
        (schema(PERSON), '{"name": "x"}', False),
        (schema(PERSON), '{"name": "x", "age": 3, "b": 1}', False),
        (schema(True), "[1]", True),
        (Grammar("regex", "[a-c]{2}x"), "abx", True),
        (Grammar("regex", "[a-c]{2}x"), "abxx", False),
        (Grammar("regex", 'a/b"\\n'), 'a/b"\n', True),
        (choice("yes", "no"), "no", True),
        (choice("yes", "no"), "n", False),
        (choice("a.b*(c)|[d]{2}^$\\", "x"), "a.b*(c)|[d]{2}^$\\", True),
        (choice("a.b", "x"), "axb", False),
        (choice('say "hi" & <b> ~ # - é\n', "x"), 'say "hi" & <b> ~ # - é\n', True),
        (choice("no", "now"), "now", True),
        (choice("no", "now"), "no", True),
        (lark('start: "x" /[0-9]{2}/'), "x07", True),
        (lark('start: "x" /[0-9]{2}/'), "x7", False),
    ],
)
def test_each_kind_allows_its_texts(compiler: GrammarCompiler, grammar: Grammar, text: str, valid: bool) -> None:
    assert matches(compiler, grammar, text) == valid


@pytest.mark.parametrize("space", ["  ", "\n\n", " \n", "\t", "\n" + 17 * " "])
def test_whitespace_is_bounded(compiler: GrammarCompiler, space: str) -> None:
    """A model that repeats it would never end its answer."""
    assert not matches(compiler, Grammar("json_object"), f'{{"a":{space}1}}')


def test_a_schema_can_set_its_whitespace(compiler: GrammarCompiler) -> None:
    compact = schema({"type": "object", "x-guidance": {"whitespace_flexible": False}})
    assert matches(compiler, compact, '{"a":1}')
    assert not matches(compiler, compact, '{"a": 1}')


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        ({"type": "strin"}, "", "Invalid type: strin"),
        ({"properties": {"a": {"items": {"format": "moon"}}}}, "properties.a.items", "Unknown format: moon"),
        ({"anyOf": [{"type": "null"}, {"type": "string", "pattern": "(?=a)"}]}, "anyOf.1", "look-around"),
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "properties.a", "uniqueItems"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"format": "moon"}}}, "properties.a", "moon"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "", "minimum (5) is greater"),
        ({"$ref": "#"}, "", "it allows no text"),
        ({"$ref": "https://example.com/schema.json"}, "", "not present"),
        (False, "", "allows no value"),
        (3, "", "must be an object"),
    ],
)
def test_a_refused_schema_says_where(compiler: GrammarCompiler, value: Any, path: str, problem: str) -> None:
    with pytest.raises(GrammarRefused) as refused:
        compiler.matcher(schema(value))
    assert refused.value.path == path
    assert problem in str(refused.value)
    assert not refused.value.unsupported


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        (Grammar("regex", "(["), "unclosed character class"),
        (Grammar("regex", ""), "no text but the empty one"),
        (Grammar("regex", "[^\\s\\S]"), "it allows no text"),
        (Grammar("choice", "[]"), "must be a list of strings"),
        (Grammar("choice", '["a", ""]'), "none of them empty"),
        (Grammar("choice", "{"), "not JSON"),
        (lark("start: other"), 'unknown name: "other"'),
        (lark("start: <|nothing|>"), "special token"),
        (Grammar("json_schema", "{"), "not JSON"),
        (Grammar("json_schema", '{"items":' * 200 + "{}" + "}" * 200), "128 levels"),
    ],
)
def test_a_refused_grammar_says_why(compiler: GrammarCompiler, grammar: Grammar, problem: str) -> None:
    with pytest.raises(GrammarRefused, match=problem.replace("(", "\\(")):
        compiler.matcher(grammar)


def test_an_error_text_is_short(compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarRefused) as refused:
        compiler.matcher(Grammar("regex", "(" * 100_000))
    assert len(str(refused.value)) < 2000


def test_special_tokens_can_be_named() -> None:
    special = SpecialTokens(300, (299,), {299: "<eos>", 298: "<tool>"})
    compiler = GrammarCompiler(lambda: byte_vocabulary(special))
    matcher = compiler.matcher(lark('start: <tool> "x"'))
    assert allowed(matcher) == [298]
    matcher.accept(298)
    assert text_of(allowed(matcher)) == "x"
    compiler.close()


def test_the_least_recently_used_grammars_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "CACHED_GRAMMARS", 2)
    first, second, third = (choice(text) for text in ("one", "two", "three"))
    with opened() as compiler:
        for each in (first, second, first, third):
            compiler.matcher(each)
        assert [compiler.cached(each) for each in (first, second, third)] == [True, False, True]


def test_large_grammars_leave_room_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "CACHED_CHARACTERS", 100)
    small, large = choice("one"), choice("x" * 200)
    with opened() as compiler:
        compiler.matcher(small)
        compiler.matcher(large)
        assert (compiler.cached(small), compiler.cached(large)) == (False, True)


def test_matchers_of_one_grammar_are_independent(compiler: GrammarCompiler) -> None:
    one, other = compiler.matcher(choice("ab")), compiler.matcher(choice("ab"))
    one.accept(ord("a"))
    assert (text_of(allowed(one)), text_of(allowed(other))) == ("b", "a")


@pytest.mark.parametrize("error", [ValueError("odd tokens"), SystemError("a panic"), BaseException("a Rust panic")])
def test_a_vocabulary_that_cannot_be_used_refuses_grammars_and_nothing_else(error: BaseException) -> None:
    calls = []

    def load() -> Any:
        calls.append(1)
        raise error

    with capture_logs() as logs:
        compiler = GrammarCompiler(load)
        for _ in range(2):
            with pytest.raises(GrammarRefused, match="tokenizer cannot be used") as refused:
                compiler.matcher(choice("a"))
            assert refused.value.unsupported
    assert len(calls) == 1, "it is not tried again"
    assert [each["event"] for each in logs] == ["vocabulary_refused"]
    compiler.close()
