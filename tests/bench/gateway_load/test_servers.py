"""The spec that a child of the gateway's benchmark is started with."""

import msgspec
import pytest

from bench.gateway_load import servers
from bench.gateway_load.servers import ServerSpec


@pytest.mark.parametrize("rate", [0.0, 0.5, 50.0])
def test_every_rate_of_the_benchmark_is_accepted(rate: float) -> None:
    spec = ServerSpec("gateway", 4, rate, 25)
    assert msgspec.json.decode(msgspec.json.encode(spec), type=ServerSpec) == spec


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"kind": "bare", "streams": 1, "rate": -1.0, "tokens": 1}', r"`float` >= 0.0 - at `\$.rate`"),
        ('{"kind": "bare", "streams": 0, "rate": 0.0, "tokens": 1}', r"`int` >= 1 - at `\$.streams`"),
        ('{"kind": "bore", "streams": 1, "rate": 0.0, "tokens": 1}', r"at `\$.kind`"),
        ('{"kind": "bare", "streams": 1, "rate": 0.0}', "missing required field `tokens`"),
    ],
)
def test_a_spec_that_is_not_valid_is_refused(text: str, problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        servers.main(text)
