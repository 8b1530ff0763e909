"""The tables of `bench/scale.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.measurement.markdown import markdown
from bench.simulation.memory import GatewayMemory
from bench.simulation.outcome import Cost, FleetOutcome, quantile
from bench.simulation.real_run import RealPoint
from bench.simulation.scenario import Scenario


@dataclass(frozen=True, slots=True)
class SimulatedPoint:
    """One simulation."""

    scenario: Scenario
    outcome: FleetOutcome
    cost: Cost


def steady_table(points: Sequence[SimulatedPoint], cold: Sequence[SimulatedPoint], added: float) -> str:
    """The curves of an undisturbed fleet, and one worker whose gateway finds other memory in the caches.

    `added` microseconds of a request are those of HTTP and ZeroMQ (see `added_us`); without real runs they are unknown.
    """
    least = min(point.cost.gateway_us for point in points)
    rows = []
    for point in (*points, *cold):
        scenario, outcome, cost = point.scenario, point.outcome, point.cost
        waits = [1000 * wait for wait in (outcome.wait_s, quantile(outcome.waits_s, 0.99), outcome.ideal_wait_s)]
        rows.append(
            [
                f"{scenario.workers:,}" + (f", {scenario.cache_bytes >> 20} MiB read" if scenario.cache_bytes else ""),
                f"{scenario.requests:,}",
                f"{cost.gateway_us:,.0f}",
                f"{cost.gateway_us / least:.2f}",
                *(
                    [f"{cost.gateway_us + added:,.0f}", f"{(cost.gateway_us + added) / (least + added):.2f}"]
                    * bool(added)
                ),
                f"{cost.idle_us:,.0f}",
                f"{cost.garbage:.1f}",
                *(f"{wait:,.1f}" for wait in waits),
                f"{100 * outcome.imbalance:.1f} %",
            ]
        )
    heads = (
        "requests",
        "CPU us/request",
        "of the least",
        *(("with HTTP", "of the least") if added else ()),
        "idle us/s",
        "garbage",
        "wait ms",
        "p99",
        "ideal",
        "imbalance",
    )
    return markdown(("workers", *heads), rows)


def memory_line(memory: GatewayMemory, largest: SimulatedPoint) -> str:
    """The memory of the gateway's code."""
    grown = largest.cost.idle_memory_bytes / 1e6
    return (
        f"memory: {memory.worker / 1e3:.0f} KB for each worker, {memory.stream / 1e3:.1f} KB for each live stream; the "
        f"process grew by {grown:,.0f} MB with {largest.scenario.workers:,} idle workers, virtual workers included"
    )


def real_table(points: Sequence[RealPoint], simulated: dict[int, SimulatedPoint]) -> str:
    """The real runs, beside what the simulation predicts."""
    added = added_us(points, simulated)
    rows = []
    for point in points:
        twin = simulated[point.workers]
        predicted = twin.cost.gateway_us + added + point.idle_us
        rows.append(
            [
                str(point.workers),
                f"{point.cpu_us:,.0f}",
                f"{predicted:,.0f}",
                f"{point.cpu_us / predicted:.2f}",
                f"{1000 * point.first_token_s:.0f}",
                f"{1000 * twin.outcome.first_token_s:.0f}",
                f"{100 * point.idle:.1f} %",
            ]
        )
    heads = ("real CPU us/request", "predicted", "ratio", "first token ms", "simulated", "idle")
    return markdown(("workers", *heads), rows)


def added_us(points: Sequence[RealPoint], simulated: dict[int, SimulatedPoint]) -> float:
    """CPU microseconds of a request that are not simulated: those of HTTP and ZeroMQ, by the real run with the most
    workers, as a process that does little at a time takes longer for it. 0 without real runs."""
    if not points:
        return 0.0
    most = max(points, key=lambda point: point.workers)
    return max(0.0, most.cpu_us - most.idle_us - simulated[most.workers].cost.gateway_us)


def loss_table(points: Sequence[SimulatedPoint]) -> str:
    """The loss of a machine."""
    rows = []
    for point in points:
        moved = point.outcome.moved
        silent, queued, gaps = ([getattr(each, name) for each in moved] for name in ("silent_s", "queued_s", "gap_s"))
        rows.append(
            [
                f"{point.scenario.workers:,}",
                str(len(moved)),
                f"{quantile(silent, 0.5):.2f}",
                f"{1000 * quantile(queued, 0.5):.1f}",
                f"{1000 * quantile(queued, 1.0):.1f}",
                f"{quantile(gaps, 0.5):.2f}",
                f"{quantile(gaps, 1.0):.2f}",
                str(point.outcome.lost + point.outcome.doubled),
                str(point.outcome.altered),
            ]
        )
    heads = ("streams moved", "noticed s", "placed ms", "at most", "gap s", "at most", "lost or doubled", "altered")
    return markdown(("workers", *heads), rows)


def gateways_table(points: Sequence[SimulatedPoint]) -> str:
    """Several gateways, with workers of their own or with the same ones."""
    rows = []
    for point in points:
        scenario, outcome, cost = point.scenario, point.outcome, point.cost
        each = scenario.workers if scenario.shared else scenario.workers / scenario.gateways
        rows.append(
            [
                str(scenario.gateways),
                f"{each:,.0f}{', shared' if scenario.shared else ''}",
                f"{cost.gateway_us:,.0f}",
                f"{100 * cost.core / scenario.gateways:.0f} %",
                f"{1000 * outcome.wait_s:.1f}",
                f"{1000 * quantile(outcome.waits_s, 0.99):,.1f}",
                f"{100 * outcome.imbalance:.1f} %",
            ]
        )
    heads = ("workers each", "CPU us/request", "of a core each", "wait ms", "p99", "imbalance")
    return markdown(("gateways", *heads), rows)


def lost_gateways_table(points: Sequence[SimulatedPoint]) -> str:
    """The loss of one of several gateways."""
    rows = [
        [
            str(point.scenario.gateways),
            f"{point.scenario.workers:,}, shared" if point.scenario.shared else f"{point.scenario.workers:,}",
            str(point.outcome.restarts),
            f"{1000 * quantile(point.outcome.restart_gaps_s, 0.5):.0f}",
            f"{1000 * quantile(point.outcome.restart_gaps_s, 1.0):.0f}",
            str(point.outcome.lost + point.outcome.doubled),
            str(point.outcome.altered),
        ]
        for point in points
    ]
    heads = ("workers", "requests sent again", "gap ms", "at most", "lost or doubled", "altered")
    return markdown(("gateways", *heads), rows)
