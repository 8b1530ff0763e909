"""The work of parsing an answer grows with its length, whatever a model was made to repeat."""

import inspect
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import pytest

from tests.workers.output_formats.answers import ANSWERS
from tests.workers.output_formats.parsed import SCHEMAS, in_pieces, plan
from workers.output_formats.calls.tool_schemas import ToolSchemas
from workers.output_formats.formats.catalog import TOOL_FORMATS
from workers.output_formats.formats.model_format import with_texts
from workers.output_formats.machine import OutputMachine

# The beginnings of answers up to a string in an argument that is an object.
HEADS = {
    "qwen3_coder": '<tool_call><function=get_weather><parameter=options>{"a": "',
    "seed_oss": '<seed:tool_call><function=get_weather><parameter=options>{"a": "',
    "minimax_m2": '<minimax:tool_call><invoke name="get_weather"><parameter name="options">{"a": "',
    "glm": '<tool_call>get_weather\n<arg_key>options</arg_key><arg_value>{"a": "',
    "glm47": '<tool_call>get_weather<arg_key>options</arg_key><arg_value>{"a": "',
    "deepseek_v32": '<｜DSML｜function_calls><｜DSML｜invoke name="get_weather">'
    '<｜DSML｜parameter name="options" string="false">{"a": "',
    "deepseek_v4": '<｜DSML｜tool_calls><｜DSML｜invoke name="get_weather">'
    '<｜DSML｜parameter name="options" string="false">{"a": "',
}
SHORT, LONG = 250, 500
MOST_GROWTH = 2.1


def work(name: str, text: str, size: int) -> int:
    """Count the calls of parsing a text in pieces of this size, and the characters of the texts and lists that are
    passed, or whose methods are called."""
    total = 0

    def count(frame: FrameType, event: str, called: Any) -> None:
        nonlocal total
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_GENERATOR:
            total += 1
        elif event == "call":
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            values = map(frame.f_locals.get, names)
            total += 1 + sum(len(each) for each in values if isinstance(each, (str, list)))
        elif event == "c_call":
            total += 1
            if isinstance(text := getattr(called, "__self__", None), str):
                total += len(text)

    sys.setprofile(count)
    try:
        _parse(name, text, size)
    finally:
        sys.setprofile(None)
    return total


def _parse(name: str, text: str, size: int) -> None:
    machine = OutputMachine(plan(name), "", SCHEMAS)
    for piece in in_pieces(text, size):
        machine.feed(piece)
        machine.take()
    machine.finish(stopped=True)


def heads(name: str) -> Iterator[str]:
    """The beginnings of an answer: its text, and an argument of a call."""
    yield "x"
    written = next(each.written for each in ANSWERS.values() if each.tools == name and "Paris" in each.written)
    yield HEADS.get(name, written[: written.index("Paris")])


def repeated(name: str) -> list[str]:
    """Markers, beginnings of markers, and what values are made of."""
    texts: dict[str, str] = {}
    with_texts(TOOL_FORMATS[name], lambda text: texts.setdefault(text.strip(), text))
    markers = [each for each in texts if len(each) > 3 and any(c in "<[`" for c in each)]
    halves = dict.fromkeys(each[: len(each) // 2] for each in markers)
    return [*markers, *halves, '"', "\\"]


@pytest.mark.parametrize("name", sorted(each for each in TOOL_FORMATS if each != "pythonic"))
def test_an_answer_of_twice_the_length_takes_twice_the_work(name: str) -> None:
    for head in heads(name):
        for each in repeated(name):
            short, long = (work(name, head + each * (length // len(each)), 4) for length in (SHORT, LONG))
            assert long < MOST_GROWTH * short, (head, each)


def test_markers_that_come_at_once_are_not_copied_for_each() -> None:
    short, long = (work("hermes", "<tool_call>x" * count, 12 * count) for count in (50, 100))
    assert long < MOST_GROWTH * short


class Looked(dict[str, Any]):
    """A schema that counts how often it is looked at."""

    times = 0

    def get(self, key: str, default: Any = None) -> Any:
        if key == "$ref":
            Looked.times += 1
        return super().get(key, default)


def test_each_part_of_a_schema_is_looked_at_once() -> None:
    parts: Mapping[str, Any] = {
        f"d{index}": Looked(anyOf=[Looked({"$ref": f"#/$defs/d{(index + 1) % 6}"}) for _ in range(10)])
        for index in range(6)
    }
    parts["d3"]["anyOf"].append(Looked(type="integer"))
    schema = {"$defs": parts, "properties": {"p": Looked({"$ref": "#/$defs/d0"})}}
    schemas = ToolSchemas([{"function": {"name": "f", "parameters": schema}}])
    Looked.times = 0
    assert schemas.types("f", "p") == schemas.types("f", "p") == ("integer",)
    assert Looked.times <= 1 + 6 * 11 + 1


def test_types_that_json_does_not_have_are_texts() -> None:
    schema = {"properties": {"p": {"type": ["date", "integer"]}}}
    assert ToolSchemas([{"function": {"name": "f", "parameters": schema}}]).types("f", "p") == ("string", "integer")
