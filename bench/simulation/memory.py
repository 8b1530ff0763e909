"""The memory of the gateway's code in a simulation, without that of the simulated world."""

import tracemalloc
from dataclasses import dataclass

from bench.simulation.scenario import Scenario
from bench.simulation.simulation import simulate

WORLD = tracemalloc.Filter(inclusive=False, filename_pattern="*/bench/*")
"""Leaves out what the code of the world has allocated."""


@dataclass(frozen=True, slots=True)
class GatewayMemory:
    """Bytes of Python objects that the code of the gateways has allocated, by Python's own count."""

    worker: float
    """For each link to a worker that has nothing to do."""
    stream: float
    """For each live stream beyond that."""


def gateway_memory(scenario: Scenario) -> GatewayMemory:
    """Run a scenario, several times as slowly as otherwise, and measure."""
    sizes: list[tuple[int, int]] = []

    def note(live: int) -> None:
        traces = tracemalloc.take_snapshot().filter_traces([WORLD])
        sizes.append((live, sum(trace.size for trace in traces.statistics("filename"))))

    tracemalloc.start()
    try:
        simulate(scenario, note)
    finally:
        tracemalloc.stop()
    (_, nothing), (_, idle), (live, loaded) = sizes
    return GatewayMemory((idle - nothing) / scenario.links, (loaded - idle) / max(1, live))
