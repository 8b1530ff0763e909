"""The scenarios that the benchmark and the tests run."""

import random
from dataclasses import replace

from bench.simulation.scenario import ClientShare, FaultKind, FleetFault, Scenario

EACH: tuple[FaultKind, ...] = (
    "node_lost",
    "rack_lost",
    "process_killed",
    "engine_hangs",
    "step_fails",
    "slow_link",
    "partition",
)
"""The kinds of faults, without what operators do."""


def steady(workers: int, requests: int, seed: int = 0) -> Scenario:
    """A scenario in which nothing breaks."""
    return Scenario(workers=workers, requests=requests, seed=seed)


def node_loss(workers: int, requests: int, seed: int = 0) -> Scenario:
    """One machine disappears without a word in the middle of the load, and comes back after half a minute."""
    scenario = steady(workers, requests, seed)
    at_s = requests / scenario.requests_per_s / 2
    return replace(scenario, faults=(FleetFault("node_lost", at_s, 0, 30.0),))


def gateway_loss(workers: int, requests: int, seed: int = 0) -> Scenario:
    """One of two gateways that share all workers disappears in the middle of the load, and is back after 5 s."""
    scenario = replace(steady(workers, requests, seed), gateways=2, shared=True)
    return replace(scenario, faults=(FleetFault("gateway_lost", requests / scenario.requests_per_s / 2, 1, 5.0),))


def troubled(workers: int, requests: int, seed: int) -> Scenario:
    """Every kind of fault once, at random times and places, and a rolling upgrade; two requests that kill workers."""
    chance = random.Random(seed)
    plain = Scenario(
        workers=workers,
        requests=requests,
        seed=seed,
        gateways=1 + seed % 2,
        utilization=chance.uniform(0.4, 1.1),
        clients=(ClientShare("a", weight=2.0), ClientShare("b"), ClientShare("c", share=0.2)),
        poison=2,
    )
    load_s = requests / plain.requests_per_s
    targets: dict[FaultKind, int] = dict.fromkeys(("node_lost", "slow_link", "partition"), plain.nodes)
    targets["rack_lost"] = plain.racks
    faults = [
        FleetFault(
            kind, chance.uniform(0.0, load_s), chance.randrange(targets.get(kind, workers)), chance.uniform(0.5, 30)
        )
        for kind in EACH
    ]
    upgrade = FleetFault("upgrade", chance.uniform(0.0, load_s), duration_s=chance.uniform(0.0, 3.0))
    return replace(plain, faults=(*faults, upgrade))
