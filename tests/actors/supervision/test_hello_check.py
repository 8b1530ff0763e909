"""Descriptions that a worker may give of itself."""

from typing import Any

import pytest
from msgspec.structs import replace

from actors.supervision.hello_check import implausible
from protocol.bounds import MAX_TOKEN_ID, PROTOCOL_VERSION
from protocol.events import Hello

HELLO = Hello(PROTOCOL_VERSION, "w", 1, 7, "Modell Ä/1.5", "iree", "cuda://0", 4, 4096, "0123", "4567")


@pytest.mark.parametrize("fields", [{}, {"context": 0}, {"context": MAX_TOKEN_ID}, {"config_digest": ""}])
def test_a_plausible_one(fields: dict[str, Any]) -> None:
    assert implausible(replace(HELLO, **fields)) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("worker", "a\x00"),
        ("model", "a\nb"),
        ("backend", "\x1b[31m"),
        ("device", "a\tb"),
        ("config_digest", "\u202e"),
        ("model_digest", "\x7f"),
        ("slots", 0),
        ("context", MAX_TOKEN_ID + 1),
    ],
)
def test_one_that_is_not(field: str, value: Any) -> None:
    problem = implausible(replace(HELLO, **{field: value}))
    assert problem is not None
    assert field.rstrip("s") in problem
