"""A simulated fleet loses and doubles nothing, whatever breaks; the cost of a request does not grow with its size."""

import cProfile
import pstats
from dataclasses import replace
from typing import Any

import pytest

from bench.simulation.engine import MODEL, EngineModel
from bench.simulation.event_loop import SimulationLoop
from bench.simulation.memory import gateway_memory
from bench.simulation.outcome import quantile
from bench.simulation.scenario import ClientShare, FaultKind, FleetFault, Scenario
from bench.simulation.scenarios import EACH, node_loss, steady, troubled
from bench.simulation.simulation import simulate
from gateway.fleet.operation import OperationOutcome

SEEDS = range(2)
FAST = EngineModel(step_s=0.2, load_s=1.0)
"""Little virtual time passes while workers load."""


def calls(scenario: Scenario) -> float:
    """Function calls for each request, of the gateway and the model."""
    profile = cProfile.Profile()
    outcome, _ = profile.runcall(simulate, scenario)
    assert outcome.codes == {"finished": scenario.requests}
    counted: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return counted / scenario.requests


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_or_doubled_whatever_breaks(seed: int) -> None:
    outcome, _ = simulate(replace(troubled(20, 400, seed), engine=FAST))
    assert outcome.intact
    # A request that was there at `MAX_TRIES` losses in a row is refused, too: so many come within seconds here.
    assert outcome.codes.keys() == {"finished", "quarantined"}
    assert 2 <= outcome.codes["quarantined"] < 10
    assert outcome.moved
    assert all(operation.endswith(OperationOutcome.DONE) for operation in outcome.operations)
    assert len(outcome.operations) == 1 + seed % 2


@pytest.mark.parametrize("kind", EACH)
def test_each_kind_of_fault_moves_streams_and_leaves_them_intact(kind: FaultKind) -> None:
    # All in one rack would leave nothing for the streams of a lost one.
    scenario = Scenario(workers=8, requests=120, workers_per_node=2, nodes_per_rack=2, utilization=0.5)
    outcome, _ = simulate(replace(scenario, faults=(FleetFault(kind, 2.0, 1, 15.0),)))
    assert outcome.intact
    assert outcome.codes == {"finished": 120}
    assert bool(outcome.moved) == (kind != "slow_link")


def test_streams_of_a_lost_machine_are_placed_in_the_turn_in_which_the_loss_is_noticed() -> None:
    outcome, _ = simulate(node_loss(24, 400))
    assert outcome.intact
    assert len(outcome.moved) > 10
    assert max(moved.queued_s for moved in outcome.moved) == 0.0
    assert all(9.0 < moved.silent_s < 13.0 for moved in outcome.moved), "the deadline of a hang is 10 s"


def test_a_rack_loses_all_its_machines_at_once() -> None:
    scenario = Scenario(workers=8, requests=200, workers_per_node=2, nodes_per_rack=2, utilization=0.5)
    kinds: tuple[FaultKind, ...] = ("node_lost", "rack_lost")
    node, rack = (simulate(replace(scenario, faults=(FleetFault(kind, 3.0, 0, 5.0),)))[0] for kind in kinds)
    assert node.intact
    assert rack.intact
    assert len(rack.moved) > 1.5 * len(node.moved) > 0
    assert rack.imbalance > node.imbalance


def test_a_slow_link_delays_the_streams_of_its_machine() -> None:
    scenario = Scenario(workers=8, requests=200, workers_per_node=2, utilization=0.5)
    plain, slow = (
        simulate(replace(scenario, faults=faults))[0] for faults in ((), (FleetFault("slow_link", 0.0, 0, 1000.0),))
    )
    assert slow.intact
    assert slow.codes == {"finished": 200}
    # 0.1 s in each direction, on a fourth of the workers.
    assert 0.02 < slow.first_token_s - plain.first_token_s < 0.2


def test_a_rolling_upgrade_fails_no_request() -> None:
    scenario = Scenario(workers=6, requests=300, utilization=0.5, engine=FAST)
    outcome, _ = simulate(replace(scenario, faults=(FleetFault("upgrade", 1.0, duration_s=0.5),)))
    assert outcome.intact
    assert outcome.codes == {"finished": 300}
    assert outcome.operations == (f"rolling restart of {MODEL}: {OperationOutcome.DONE}",)
    assert outcome.moved


def test_requests_that_kill_workers_of_several_gateways_are_refused_and_hardly_any_others() -> None:
    """Another request is refused only where it was beside both of them when they killed its worker."""
    refused = []
    for seed in range(3):
        scenario = Scenario(workers=8, requests=300, poison=2, gateways=3, shared=True, utilization=0.5, seed=seed)
        outcome, _ = simulate(scenario)
        assert outcome.intact
        assert outcome.codes.keys() == {"finished", "quarantined"}
        refused.append(outcome.codes["quarantined"])
    assert min(refused) == 2
    assert sum(refused) <= 7


def test_clients_that_always_wait_are_served_by_weight() -> None:
    clients = (ClientShare("a", weight=3.0), ClientShare("b", weight=1.0))
    scenario = Scenario(workers=4, requests=600, clients=clients, utilization=30.0, engine=FAST)
    outcome, _ = simulate(scenario)
    assert outcome.intact
    # The first ones found free slots, and the last ones are what is left of one client.
    served = outcome.served(100, 300)
    assert 2.8 < served["a"] / served["b"] < 3.2


def test_a_full_queue_refuses_with_a_code() -> None:
    scenario = Scenario(workers=2, requests=300, utilization=10.0, max_waiting=20, engine=FAST)
    outcome, _ = simulate(scenario)
    assert outcome.intact
    assert outcome.codes.keys() == {"finished", "overloaded"}
    assert outcome.codes["overloaded"] > 100


def test_gateways_that_share_nothing_serve_their_own_workers() -> None:
    outcome, _ = simulate(replace(steady(8, 200), gateways=4))
    assert outcome.intact
    assert outcome.codes == {"finished": 200}


def test_gateways_that_share_all_workers_do_not_all_choose_the_same_one() -> None:
    outcome, _ = simulate(replace(steady(8, 240), gateways=8, shared=True))
    assert outcome.intact
    assert outcome.codes == {"finished": 240}
    # A random worker each time would let 5 % wait for a slot.
    assert quantile(outcome.waits_s, 0.98) < 0.1


@pytest.mark.parametrize("shared", [False, True])
def test_clients_of_a_lost_gateway_are_served_by_the_others(shared: bool) -> None:
    fault = FleetFault("gateway_lost", 5.0, 1, 5.0)
    outcome, _ = simulate(replace(steady(8, 300), gateways=2, shared=shared, utilization=0.3, faults=(fault,)))
    assert outcome.intact
    assert outcome.codes == {"finished": 300}
    assert outcome.restarts > 5
    assert len(outcome.restart_gaps_s) > 5
    assert max(outcome.restart_gaps_s) < 0.5


def test_clients_of_the_only_gateway_wait_for_its_next_process() -> None:
    outcome, _ = simulate(replace(steady(4, 60), utilization=0.3, faults=(FleetFault("gateway_lost", 1.5, 0, 3.0),)))
    assert outcome.intact
    assert outcome.codes == {"finished": 60}
    assert min(outcome.restart_gaps_s) > 3.0


@pytest.mark.parametrize("kind", EACH)
def test_faults_of_shared_workers_leave_streams_intact(kind: FaultKind) -> None:
    scenario = Scenario(workers=8, requests=120, workers_per_node=2, nodes_per_rack=2, utilization=0.5)
    shared = replace(scenario, gateways=3, shared=True, faults=(FleetFault(kind, 2.0, 1, 15.0),))
    outcome, _ = simulate(shared)
    assert outcome.intact
    assert outcome.codes == {"finished": 120}


def test_the_same_seed_gives_the_same_outcome() -> None:
    first, second, other = (simulate(replace(troubled(8, 100, seed), engine=FAST))[0] for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_the_cost_of_a_request_does_not_grow_with_the_number_of_workers() -> None:
    few, many = (calls(steady(workers, 6 * workers)) for workers in (16, 64))
    assert many < 1.1 * few


def test_a_request_leaves_nothing_to_the_garbage_collector() -> None:
    _, cost = simulate(steady(4, 200))
    assert cost.garbage == 0.0


def test_the_cost_of_requests_is_measured_while_they_come() -> None:
    _, cost = simulate(steady(4, 100))
    assert min(cost.gateway_us, cost.model_us, cost.core, cost.idle_us) > 0.0


def test_memory_is_that_of_the_gateway_for_each_worker_and_stream() -> None:
    memory = gateway_memory(steady(8, 40))
    assert 1_000 < memory.stream < memory.worker < 200_000


def test_other_code_may_have_used_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(SimulationLoop, "read_memory", lambda loop: read.append(len(loop._memory)))
    outcome, _ = simulate(replace(steady(1, 5), cache_bytes=4096))
    assert outcome.intact
    assert len(read) > 5
    assert set(read) == {4096}


def test_an_altered_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.simulation.engine.token_at", lambda key, position: 1 if position == 3 else position)
    outcome, _ = simulate(steady(1, 5))
    assert outcome.altered > 0
    assert not outcome.intact


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"workers": 0}, "gateways"),
        ({"requests": 0}, "requests"),
        ({"gateways": 9}, "gateways"),
        ({"poison": 11}, "poison"),
        ({"utilization": 0.0}, "utilization"),
        ({"prompt_tokens": (5, 4)}, "prompt_tokens"),
        ({"faults": (FleetFault("node_lost", 0.0, 1),)}, "faults"),
        ({"faults": (FleetFault("gateway_lost", 0.0, 1),)}, "faults"),
        ({"faults": (FleetFault("upgrade", 0.0),), "shared": True}, "faults"),
        ({"faults": (FleetFault("upgrade", 0.0), FleetFault("gateway_lost", 0.0))}, "faults"),
    ],
)
def test_a_scenario_that_cannot_be_is_refused_by_the_name_of_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        replace(Scenario(workers=8, requests=10), **changes)
