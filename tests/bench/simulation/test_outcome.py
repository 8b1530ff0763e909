"""The verdict on a simulation: which requests were refused too early."""

import pytest

from bench.simulation.client import ReceivedStream, Wanted
from bench.simulation.outcome import judge
from bench.simulation.scenario import Scenario
from gateway.routing.failure import Cause
from gateway.tracing.traced_request import Attempt


@pytest.mark.parametrize(
    ("causes", "early"),
    [
        ([Cause.KILLED] * 3, 1),
        ([Cause.KILLED] * 4, 0),
        ([Cause.KILLED, Cause.DIED], 1),
        ([Cause.STEP, Cause.DIED], 0),
        ([Cause.LEFT, Cause.MOVED, Cause.DIED], 1),
    ],
)
def test_a_request_is_refused_too_early_before_all_tries_or_two_failures_from_within(
    causes: list[Cause], early: int
) -> None:
    attempts = tuple(Attempt("w", 1, 0.0, 0, cause=str(cause)) for cause in causes)
    received = ReceivedStream(Wanted(1, "a", 0.0, 1, 1), "quarantined", 1, attempts=attempts)
    outcome = judge(Scenario(workers=1, requests=1), [received], [], [], 1.0, [0])
    assert outcome.refused_early == early
    assert outcome.intact is not bool(early)
