"""Runs the machine over texts, and what came of it in a form that is easy to compare."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from protocol.events import ReasoningSegment, Segment, ToolCallSegment
from workers.output_formats.calls.tool_schemas import ToolSchemas
from workers.output_formats.formats.catalog import REASONING_FORMATS, TOOL_FORMATS
from workers.output_formats.machine import OutputMachine
from workers.output_formats.parse_plan import ParsePlan

PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "limit": {"type": "number"},
    "metric": {"type": "boolean"},
    "note": {"type": ["string", "null"]},
    "options": {"type": "object"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
}


def tool(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": dict(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("get_weather", PROPERTIES), tool("get_time", {})]
SCHEMAS = ToolSchemas(TOOLS)


class Call(NamedTuple):
    """A call, with its arguments as the client puts them together."""

    name: str
    arguments: str

    @property
    def decoded(self) -> Any:
        return json.loads(self.arguments)


class Parsed(NamedTuple):
    """The output of a whole answer."""

    text: str
    reasoning: str
    calls: tuple[Call, ...]
    order: str
    """The kinds of the segments in their order: t, r and c."""
    reason: str
    malformed: tuple[str, ...]

    def decoded(self) -> list[tuple[str, Any]]:
        return [(call.name, call.decoded) for call in self.calls]


def joined(segments: Iterable[Segment]) -> tuple[str, str, tuple[Call, ...], str]:
    """Put segments together as a client does. A name may only be in the first part of a call."""
    text = reasoning = order = ""
    calls: list[Call] = []
    for segment in segments:
        if isinstance(segment, ToolCallSegment):
            kind = f"c{segment.call}"
            if segment.name:
                assert segment.call == len(calls), "calls are numbered in their order"
                calls.append(Call(segment.name, segment.arguments))
            else:
                assert segment.call == len(calls) - 1, "only the last call goes on"
                calls[-1] = Call(calls[-1].name, calls[-1].arguments + segment.arguments)
        elif isinstance(segment, ReasoningSegment):
            kind = "r"
            reasoning += segment.text
        else:
            kind = "t"
            text += segment.text
        if not order.endswith(kind):
            order += kind
    return text, reasoning, tuple(calls), order


def plan(tools: str | None, reasoning: str | None = None, added_tokens: Mapping[str, int] | None = None) -> ParsePlan:
    made = ParsePlan.of(
        added_tokens or {},
        None if reasoning is None else REASONING_FORMATS[reasoning],
        None if tools is None else TOOL_FORMATS[tools],
    )
    assert made is not None
    return made


def parse(
    pieces: Sequence[str] | str,
    tools: str | None,
    *,
    reasoning: str | None = None,
    prompt: str = "",
    stopped: bool = True,
    parallel: bool = True,
    schemas: ToolSchemas = SCHEMAS,
) -> Parsed:
    """Parse a text, or a text in pieces, with markers that are ordinary text."""
    machine = OutputMachine(plan(tools, reasoning), prompt, schemas, parallel=parallel)
    segments: list[Segment] = []
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        machine.feed(piece)
        segments += machine.take()
    machine.finish(stopped=stopped)
    segments += machine.take()
    calls = machine.complete_calls and not machine.broken
    reason = "tool_calls" if calls and (stopped or machine.ended) else "stop" if stopped else "length"
    return Parsed(*joined(segments), reason, tuple(map(str, machine.malformed)))


def in_pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]
