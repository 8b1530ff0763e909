"""The parser of a format reads every tool call that the grammar of the format allows."""

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.events import Segment, TextSegment, ToolCallSegment
from protocol.request import ToolChoice
from tests.workers.grammar.test_tool_grammar import FORMATS, GOOD, SINGLE, Format, Model, tools
from workers.output_formats.calls.tool_schemas import ToolSchemas
from workers.output_formats.formats.catalog import TOOL_FORMATS
from workers.output_formats.parse_plan import ParsePlan
from workers.output_formats.parser import OutputParser
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("weather", GOOD),
    ("weather_time", {}),
    ("weather", {"city": "", "days": 3}),
]


def tokenizer_of(model: Model, folder: Path) -> CheckpointTokenizer:
    (folder / "tokenizer.json").write_text(model.library.to_str())
    return CheckpointTokenizer.from_dir(folder)


@pytest.mark.parametrize("kind", FORMATS)
def test_forced_calls_are_parsed(kind: str, tmp_path: Path) -> None:
    tested = Format(kind)
    calls = CALLS[:1] if kind in SINGLE else CALLS
    assert tested.takes(tested.grammar(tools(), ToolChoice("required")), *calls)
    tokenizer = tokenizer_of(tested.model, tmp_path)
    plan = ParsePlan.of(tokenizer.added_tokens, None, TOOL_FORMATS[tested.name])
    assert plan is not None
    parser = OutputParser(plan, tokenizer, (), (), ToolSchemas(json.loads(tools())))
    tokens = tested.model.library.encode(tested.answer(*calls), add_special_tokens=False).ids
    segments: list[Segment] = [segment for token in tokens for segment in parser.push(token)]
    segments += parser.finish("stop")
    found: dict[int, tuple[str, str]] = {}
    for segment in segments:
        if isinstance(segment, ToolCallSegment):
            name, arguments = found.get(segment.call, ("", ""))
            found[segment.call] = (name + segment.name, arguments + segment.arguments)
    assert [(name, json.loads(arguments)) for name, arguments in found.values()] == calls
    assert not "".join(segment.text for segment in segments if isinstance(segment, TextSegment)).strip()
    assert parser.finish_reason("stop") == "tool_calls"
