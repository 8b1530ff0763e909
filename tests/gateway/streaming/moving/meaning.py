"""The meaning of the events of a stream, whatever their number: text in any pieces is the same text."""

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from gateway.streaming.moving.event_position import EventPosition, parse_position

Piece = tuple[tuple[Any, ...], str]
"""A kind of output, and a part of its text."""


def data_of(event: bytes) -> Any:
    """The object of an event; None for the end of a stream of OpenAI's."""
    data = event.rpartition(b"data: ")[2]
    return None if data == b"[DONE]" else json.loads(data)


def id_of(event: bytes) -> str:
    return next(line for line in event.split(b"\n") if line.startswith(b"id: ")).removeprefix(b"id: ").decode()


def position_of(event: bytes) -> EventPosition:
    """The position in the id of an event."""
    found = parse_position(id_of(event).rpartition("-")[2])
    assert found is not None
    return found


def meaning(events: Iterable[bytes]) -> list[Piece]:
    """The output of each choice, in order."""
    pieces = [piece for event in events for piece in _pieces(data_of(event))]
    pieces.sort(key=lambda piece: str(piece[0][0]))
    return [(key, "".join(text for _, text in run)) for key, run in groupby(pieces, key=lambda piece: piece[0])]


def reports(events: Iterable[bytes]) -> dict[Any, list[Any]]:
    """Token ids and log-probabilities of each choice."""
    found: dict[Any, list[Any]] = {}
    for event in events:
        data = data_of(event) or {}
        for choice in data.get("choices", ()):
            found.setdefault(choice["index"], []).extend(choice.get("token_ids", ()))
            logprobs = choice.get("logprobs") or {}
            found.setdefault(("logprobs", choice["index"]), []).extend(
                logprobs.get("content") or zip(logprobs.get("tokens", ()), logprobs.get("text_offset", ()), strict=True)
            )
        if data.get("type") == "response.output_text.delta":
            found.setdefault("logprobs", []).extend(data["logprobs"])
    return found


def _pieces(data: Any) -> Iterator[Piece]:
    if data is None:
        yield ("z", "done"), ""
    elif "choices" in data:
        yield from _chunk(data)
    elif data["type"].endswith(".delta") or data["type"] == "content_block_delta":
        delta = data["delta"]
        where = data.get("output_index", data.get("index"))
        if isinstance(delta, str):
            yield (0, data["type"], where), delta
        else:
            yield (0, delta.pop("type"), where), "".join(delta.values())
    else:
        data.pop("sequence_number", None)
        if data["type"] == "response.completed":
            del data["response"]["completed_at"]
        yield (0, "event", json.dumps(data)), ""


def _chunk(data: Any) -> Iterator[Piece]:
    yield ("head", data["id"], data["created"], data["model"]), ""
    for choice in data["choices"]:
        index = choice["index"]
        delta = choice.get("delta", {"content": choice.get("text", "")})
        if "role" in delta:
            yield (index, "role", delta["role"]), ""
        for name in ("content", "reasoning"):
            if delta.get(name):
                yield (index, name), delta[name]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                yield (index, "call", call["index"], call["id"], call["function"]["name"]), ""
            if call["function"]["arguments"]:
                yield (index, "arguments", call["index"]), call["function"]["arguments"]
        if choice["finish_reason"]:
            yield (index, "finish", choice["finish_reason"], choice.get("stop_reason")), ""
    if data.get("usage"):
        yield ("usage", json.dumps(data["usage"])), ""
