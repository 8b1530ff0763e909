"""Events of every kind of output, in the published order and in the shapes that OpenAI's client knows."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.generation.delta import OutputDelta, StopReason, TextDelta
from gateway.openai.logprobs import PART_TOKENS
from gateway.responses.answer_schema import ResponseAnswerObject
from tests.gateway.responses.rendering import (
    ANSWERS,
    CALLS,
    COUNTS,
    FAILURE,
    HEAD,
    REPORT,
    TEXT,
    answer,
    rendered,
    whole,
)

GOLDEN = Path(__file__).parent / "golden"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
SCENARIOS = {
    **{name: rendered(answer(), deltas) for name, deltas in ANSWERS.items()},
    "encrypted": rendered(answer(encrypted=True), CALLS),
    "failed": rendered(answer(), [TextDelta(0, "Hel")], FAILURE),
    "failed_before_output": rendered(answer(), [], FAILURE),
}
TEXT_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def decoded(events: list[bytes]) -> list[tuple[str, Any]]:
    """The name and the data of each event."""
    found = []
    for event in events:
        name, data = re.fullmatch(rb"event: (.*)\ndata: (.*)\n\n", event).groups()  # type: ignore[union-attr]
        found.append((name.decode(), json.loads(data)))
    return found


def neutral(raw: bytes) -> bytes:
    return re.sub(rb'"completed_at":\d+', b'"completed_at":0', raw)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_events_are_the_golden_ones(name: str) -> None:
    assert neutral(b"".join(SCENARIOS[name])) == (GOLDEN / f"{name}.sse").read_bytes()


def test_every_golden_file_has_a_scenario() -> None:
    assert {path.stem for path in GOLDEN.glob("*.sse")} == set(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_events_are_numbered_and_have_the_types_of_the_client(name: str) -> None:
    events = decoded(SCENARIOS[name])
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    for kind, data in events:
        assert data["type"] == kind
        assert EVENT.validate_python(data, strict=False).type == kind


def test_text_has_the_published_order() -> None:
    assert [name for name, _ in decoded(rendered(answer(), TEXT))] == TEXT_EVENTS


def test_each_kind_of_output_is_an_item() -> None:
    names = [name for name, _ in decoded(SCENARIOS["calls"])]
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        *TEXT_EVENTS[2:-1],
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_whole_answer_is_the_response_of_the_last_event(name: str) -> None:
    body = neutral(whole(answer(), ANSWERS[name]))
    last = decoded([neutral(SCENARIOS[name][-1])])[0][1]["response"]
    assert json.loads(body) == last
    found = Response.model_validate_json(body)
    assert found.status == ("incomplete" if name.startswith("incomplete") else "completed")
    msgspec.json.decode(body, type=ResponseAnswerObject)


@pytest.mark.parametrize("name", ANSWERS)
def test_parts_of_an_item_are_what_the_item_has_at_its_end(name: str) -> None:
    events = decoded(SCENARIOS[name])
    output = events[-1][1]["response"]["output"]
    for index, item in enumerate(output):
        own = [(kind, data) for kind, data in events if data.get("output_index") == index]
        pieces = "".join(data["delta"] for kind, data in own if kind.endswith(".delta"))
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert pieces == text
        assert own[-1] == ("response.output_item.done", own[-1][1] | {"item": item})
        assert {data.get("item_id", item["id"]) for _, data in own} == {item["id"]}
    if name == "logprobs":
        reported = [each for kind, data in events if kind.endswith("text.delta") for each in data["logprobs"]]
        assert reported == output[0]["content"][0]["logprobs"]
        assert len(reported) == 2


def test_an_answer_that_ran_into_its_limit_is_incomplete() -> None:
    response = decoded(SCENARIOS["incomplete_call"])[-1][1]["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"


def test_a_failure_has_what_was_generated() -> None:
    name, data = decoded(SCENARIOS["failed"])[-1]
    assert name == "response.failed"
    assert data["response"]["error"] == {"code": "server_error", "message": "not finished within 1 s"}
    assert data["response"]["output"][0]["content"][0]["text"] == "Hel"


def test_the_usage_has_the_tokens_of_the_reasoning() -> None:
    counts = COUNTS._replace(reasoning=6)
    parts = answer().whole(HEAD, ANSWERS["incomplete_reasoning"], counts, continued=False)
    usage = json.loads(b"".join(parts))["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 6}
    assert usage["input_tokens_details"] == {"cached_tokens": 2, "cache_write_tokens": 0}


def test_log_probabilities_of_a_whole_answer_are_rendered_in_parts() -> None:
    """Others are served between the parts of a body."""
    count = 4 * PART_TOKENS
    deltas: list[OutputDelta] = [TextDelta(0, "x", (), (REPORT,) * count, StopReason.END)]
    parts = list(answer().whole(HEAD, deltas, COUNTS, continued=False))
    assert len(json.loads(b"".join(parts))["output"][0]["content"][0]["logprobs"]) == count
    assert max(map(len, parts)) < 200 * PART_TOKENS


if __name__ == "__main__":
    for scenario, events in SCENARIOS.items():
        (GOLDEN / f"{scenario}.sse").write_bytes(neutral(b"".join(events)))
