"""Bodies, events, statuses and headers are kept byte for byte: no rearrangement of the gateway changes the API."""

import pytest

from tests.gateway.harness.transcripts import play
from tests.gateway.openai.scenarios import GOLDEN, SCENARIOS, SETTINGS


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_response_is_the_golden_one(name: str) -> None:
    assert play(SCENARIOS[name], **SETTINGS.get(name, {})) == (GOLDEN / f"{name}.http").read_bytes()


def test_every_golden_file_has_a_scenario() -> None:
    assert {path.stem for path in GOLDEN.glob("*.http")} == set(SCENARIOS)
