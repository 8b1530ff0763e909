"""Leaks: what a server must have released."""

from dataclasses import replace

import pytest

from bench.soak_test.leaks import FEWEST, MORE, SLACK, ServerSample, leaks

REST = ServerSample(0.0, 100_000_000, 40, 9, 3, 300_000_000, 20, 0, 0)
METRICS = {"baton_slots_available": 16.0}


def test_a_server_at_rest_holds_what_it_held_before() -> None:
    assert leaks(REST, [REST] * FEWEST, REST, METRICS, 16) == []
    within = {name: getattr(REST, name) + more for name, more in MORE.items()}
    assert leaks(REST, [], replace(REST, **within, restarts=50), METRICS, 16) == []


@pytest.mark.parametrize(
    "name", ["gateway_descriptors", "gateway_threads", "processes", "worker_descriptors", "streams"]
)
def test_one_more_is_a_leak(name: str) -> None:
    (problem,) = leaks(REST, [], replace(REST, **{name: getattr(REST, name) + 1 + MORE.get(name, 0)}), METRICS, 16)
    assert name.split("_")[0] in problem or "sequences" in problem


@pytest.mark.parametrize(
    "metrics",
    [
        {"baton_slots_available": 15.0},
        METRICS | {"baton_live_sequences": 1.0},
        METRICS | {"baton_waiting_sequences": 1.0},
    ],
)
def test_what_the_gateway_still_counts_is_a_leak(metrics: dict[str, float]) -> None:
    assert len(leaks(REST, [], REST, metrics, 16)) == 1


@pytest.mark.parametrize(("grown", "problems"), [(0, 0), (int(SLACK), 0), (int(SLACK) + 1, 1)])
def test_memory_may_grow_by_its_slack_after_the_warm_up(grown: int, problems: int) -> None:
    late = replace(REST, gateway_bytes=REST.gateway_bytes + grown)
    samples = [replace(REST, gateway_bytes=1)] * 8 + [REST] * 12 + [late] * 12
    assert len(leaks(REST, samples, REST, METRICS, 16)) == problems
