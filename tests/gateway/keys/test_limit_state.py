"""The headers about the limits of a key, in the formats of two vendors."""

from datetime import UTC, datetime

import pytest

from gateway.anthropic.limit_headers import anthropic_headers
from gateway.keys.limit_state import LimitState, openai_headers

LIMITS = [LimitState(b"requests", 60, 59, 0.7504), LimitState(b"tokens", 6000, 0, 75.0)]


def test_those_of_openai() -> None:
    assert dict(openai_headers(LIMITS)) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"0.751s",
        b"x-ratelimit-limit-tokens": b"6000",
        b"x-ratelimit-remaining-tokens": b"0",
        b"x-ratelimit-reset-tokens": b"75s",
    }


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, b"0s"), (100.0, b"100s"), (1_234_567.0, b"1234567s"), (1e9, b"1000000000s")]
)
def test_a_long_time_is_written_as_a_short_one(seconds: float, text: bytes) -> None:
    assert openai_headers([LimitState(b"tokens", 1, 0, seconds)])[-1][1] == text


def test_those_of_anthropic() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    found = dict(anthropic_headers(LIMITS))
    assert sorted(found) == sorted(
        b"anthropic-ratelimit-%s-%s" % (kind, value)
        for kind in (b"requests", b"tokens")
        for value in (b"limit", b"remaining", b"reset")
    )
    assert found[b"anthropic-ratelimit-requests-remaining"] == b"59"
    assert found[b"anthropic-ratelimit-tokens-limit"] == b"6000"
    reset = found[b"anthropic-ratelimit-tokens-reset"].decode()
    assert reset.endswith("Z")
    seconds = (datetime.fromisoformat(reset) - before).total_seconds()
    assert 75 <= seconds <= 75 + 60
