"""Mutated bodies, of which `tests.attacks.answers.bodies_at_random` throws a million by hand."""

from tests.attacks.answers.bodies_at_random import resident, throw

COUNT = 20_000


def test_every_body_is_accepted_or_refused_by_a_typed_error() -> None:
    throw(2_000, seed=1)
    before = resident()
    outcomes = throw(COUNT, seed=2)
    assert sum(outcomes.values()) == COUNT
    assert {"accepted", "invalid_json", "invalid_request", "unknown_parameter", "unsupported"} <= set(outcomes)
    assert min(outcomes.values()) > 0
    assert resident() - before < 16 * 1024 * 1024
