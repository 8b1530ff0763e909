"""`keep_alive` as Ollama's clients write it."""

import math

import pytest

from gateway.errors import RequestError
from gateway.ollama.residence import MAX_KEEP_ALIVE_S, keep_alive_s


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        ("", None),
        (0, 0.0),
        (1.5, 1.5),
        (-1, math.inf),
        ("0", 0.0),
        ("300", 300.0),
        ("-1", math.inf),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("-5m", math.inf),
        ("0s", 0.0),
        (MAX_KEEP_ALIVE_S, MAX_KEEP_ALIVE_S),
        (MAX_KEEP_ALIVE_S + 1, math.inf),
        (math.nan, math.inf),
    ],
)
def test_a_duration_is_seconds(given: str | float | None, seconds: float | None) -> None:
    assert keep_alive_s(given) == (pytest.approx(seconds) if seconds is not None else None)


@pytest.mark.parametrize("given", ["soon", "5 m", "5d", "m", "1h-5m", "--5m", "5m ", "1" * 16])
def test_another_text_is_refused(given: str) -> None:
    with pytest.raises(RequestError, match="keep_alive") as error:
        keep_alive_s(given)
    assert error.value.field == "keep_alive"
