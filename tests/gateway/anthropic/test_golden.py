"""Bodies, events, statuses and headers are kept byte for byte: no rearrangement of the gateway changes the API."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.anthropic.answer_schema import MessageErrorAnswer, MessageObject, ModelInfo, ModelPage
from tests.gateway.anthropic.scenarios import GOLDEN, RENDERED, SCENARIOS, SETTINGS
from tests.gateway.harness.transcripts import play


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_response_is_the_golden_one(name: str) -> None:
    assert play(SCENARIOS[name], **SETTINGS.get(name, {})) == (GOLDEN / f"{name}.http").read_bytes()


@pytest.mark.parametrize("name", sorted(RENDERED))
def test_an_output_is_rendered_as_the_golden_one(name: str) -> None:
    assert RENDERED[name] == (GOLDEN / f"{name}.out").read_bytes()


def test_every_golden_file_has_a_scenario() -> None:
    named = {f"{name}.http" for name in SCENARIOS} | {f"{name}.out" for name in RENDERED}
    assert {path.name for path in GOLDEN.iterdir()} == named


@pytest.mark.parametrize("path", sorted(GOLDEN.iterdir()), ids=lambda path: path.name)
def test_what_is_recorded_has_its_type(path: Path) -> None:
    raw = path.read_bytes()
    body = raw.partition(b"\n\n")[2] if path.suffix == ".http" else raw
    if body.startswith((b"event:", b"id:")):
        return
    kinds: dict[str, Any] = {"model.http": ModelInfo, "models.http": ModelPage}
    kind = MessageErrorAnswer if re.search("failed|refused|unknown", path.name) else MessageObject
    msgspec.json.decode(body, type=kinds.get(path.name, kind))
