"""Options of structured output, tools and reasoning: what they read, and errors that name the place."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.config.errors import InvalidOption
from cli.config.generation_options import reasoning_mode, schema_grammar, tools_json
from protocol.request import Grammar

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "now"}}


def test_a_schema_is_a_file_or_the_text_itself(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "integer"}')
    expected = Grammar("json_schema", '{"type":"integer"}', "--json-schema")
    assert schema_grammar(str(file)) == schema_grammar(' {"type": "integer"}') == expected
    assert schema_grammar(None) is None


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("none.json", "none.json cannot be read: No such file"),
        (".", ". cannot be read: Is a directory"),
        ("a\0b", "cannot be read: it is not the name of a file"),
        ("", "cannot be read"),
        ("{", "the schema is not JSON; see line 1, column 2"),
        ('{"a": NaN}', "the schema has a number that JSON does not have"),
        ('{"a": %s}' % ("1" * 5000), "the schema has a number"),
        ('{"a": ' + "[" * 100_000, "the schema is nested too deeply"),
        ('{"a": ' + "[" * 100 + "]" * 100 + "}", "nested more than 64 levels deep"),
        ("[]", "must be a JSON schema: an object"),
        ('{"a": "\\ud800"}', "text that is not valid Unicode"),
        (json.dumps({"description": "x" * (1 << 20)}), "524288 are allowed"),
    ],
    ids=lambda value: value[:20].replace("\0", "0"),
)
def test_a_wrong_schema_is_explained(given: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidOption, match=r"^--json-schema: ") as error:
        schema_grammar(given)
    assert problem in error.value.message


def test_tools_are_read_in_the_form_of_openai(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([TOOL | {"function": {"name": "now", "description": None, "strict": True}}]))
    parameters = {"type": "object", "properties": {}}
    function = {"name": "now", "parameters": parameters, "strict": True}
    assert json.loads(tools_json(str(file))) == [{"type": "function", "function": function}]
    assert tools_json(None) == ""


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff", "is not UTF-8 at byte 1"),
        (b"x", "is not JSON; see line 1, column 1"),
        (b"{}", "must be a JSON list of tools"),
        (b"[]", "must be a JSON list of tools"),
        (b"[5]", "[0] must have the form"),
        (b'[{"type": "web_search"}]', "[0] must have the form"),
        (b'[{"type": "function", "name": "now"}]', "[0] must have the form"),
        (b'[{"type": "function", "function": {}}]', "[0].function.name is missing"),
        (b'[{"type": "function", "function": {"name": 5}}]', "[0].function.name must be a text, not 5"),
        (b'[{"type": "function", "function": {"name": "a b"}}]', "[0].function.name must be 1 to 128 letters"),
        (b'[{"type": "function", "function": {"name": "f", "body": 1}}]', "[0].function.body is not known"),
        (b'[{"type": "function", "function": {"name": "f", "parameters": 1}}]', "parameters must be a JSON schema"),
        (json.dumps([TOOL, TOOL]).encode(), "[1].function.name is the name of another tool"),
        (json.dumps([TOOL] * 300).encode(), "a request may have 256 tools"),
        (b" " * (5 << 20), "has over 4194304 bytes"),
    ],
    ids=range(15),
)
def test_wrong_tools_are_explained(content: bytes, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_bytes(content)
    with pytest.raises(InvalidOption, match=r"^--tools: ") as error:
        tools_json(str(file))
    assert problem in error.value.message


def test_a_wrong_mode_of_reasoning_is_explained() -> None:
    assert reasoning_mode("hide") == "hide"
    with pytest.raises(InvalidOption, match=r"^--reasoning: must be one of show, fold, hide, not 'loud'$"):
        reasoning_mode("loud")
