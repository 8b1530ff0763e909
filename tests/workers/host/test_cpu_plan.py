"""The CPU plan: threads, pinning and memory of workers, on machines that the tests describe."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.workers.host.machines import (
    FOUR_DISTANCES,
    Machine,
    big_little,
    epyc,
    four_nodes,
    hybrid,
    laptop,
    two_sockets,
)
from workers.host.cpu_list import cpu_list
from workers.host.cpu_plan import BindRefused, CpuPlan, WorkerCpus
from workers.host.topology import Core, Topology

Make = Callable[[Path], Machine]


@pytest.mark.parametrize(
    ("make", "workers", "each"),
    [
        (laptop, 1, 4),
        (laptop, 3, 1),
        (laptop, 9, 1),
        (hybrid, 1, 14),
        (hybrid, 2, 7),
        (epyc, 1, 64),
        (epyc, 8, 8),
        (two_sockets, 1, 64),
        (two_sockets, 2, 32),
        (two_sockets, 3, 21),
        (two_sockets, 4, 16),
    ],
)
def test_workers_share_the_fast_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make, workers: int, each: int
) -> None:
    plan = CpuPlan.of(make(tmp_path).topology(monkeypatch), workers)
    assert [cpus.threads for cpus in plan.workers] == [each] * workers
    assert plan.spare.threads == each, "the graphs of a standby worker are the same"


@pytest.mark.parametrize("workers", [1, 2])
def test_cores_of_one_cache_are_left_to_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    plan = CpuPlan.of(laptop(tmp_path).topology(monkeypatch), workers)
    assert plan.workers == (WorkerCpus(4 // workers),) * workers
    assert plan.not_pinned == "the cores are equivalent and share one cache"


def test_threads_keep_off_efficiency_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = CpuPlan.of(hybrid(tmp_path).topology(monkeypatch, cpus=range(16)))
    assert plan.workers == (WorkerCpus(6, (cpu_list("0-11"),) * 6),)
    assert str(plan.workers[0]) == "6 compute threads, pinned to CPUs 0-11"


def test_threads_keep_off_small_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = CpuPlan.of(big_little(tmp_path).topology(monkeypatch, cpus=range(8)))
    assert plan.workers == (WorkerCpus(4, ((4, 5, 6, 7),) * 4),)


def test_cores_that_share_no_cache_are_not_pinned_alone() -> None:
    """As in many virtual machines."""
    cores = tuple(Core((cpu,), cache=cpu) for cpu in range(8))
    assert CpuPlan.of(Topology(cores, can_bind=True)).workers == (WorkerCpus(8),)


def test_workers_on_uneven_nodes_have_equal_shares() -> None:
    cores = tuple(Core((cpu,), node=int(cpu == 8)) for cpu in range(9))
    assert [cpus.threads for cpus in CpuPlan.of(Topology(cores, can_bind=True), 2).workers] == [4, 4]


def test_each_cache_has_a_thread_for_each_of_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = epyc(tmp_path).topology(monkeypatch)
    (cpus,) = CpuPlan.of(topology).workers
    domains = [cpu_list(f"{first}-{first + 7},{first + 64}-{first + 71}") for first in range(0, 64, 8)]
    assert cpus.pins == tuple(domain for domain in domains for _ in range(8))
    assert (cpus.cpus, cpus.nodes, cpus.copy) == ((), (), "")
    second = CpuPlan.of(topology, 2).workers[1]
    assert second.pins == tuple(domain for domain in domains[4:] for _ in range(8)), "whole caches"


def test_one_worker_interleaves_its_memory_between_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = CpuPlan.of(two_sockets(tmp_path).topology(monkeypatch))
    (cpus,) = plan.workers
    assert cpus.pins == (cpu_list("0-31,64-95"),) * 32 + (cpu_list("32-63,96-127"),) * 32
    assert (cpus.cpus, cpus.nodes, cpus.copy) == ((), (0, 1), "")
    assert plan.spare == WorkerCpus(64, nodes=(0, 1))
    assert plan.advice == "a worker for each NUMA node reads its weights from near memory: --workers 2"
    assert str(cpus) == "64 compute threads, pinned to CPUs 0-127, memory of NUMA nodes 0-1"


def test_a_worker_for_each_node_has_its_own_copy_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = CpuPlan.of(two_sockets(tmp_path).topology(monkeypatch), 2)
    for node, cpus in enumerate(plan.workers):
        own = cpu_list(("0-31,64-95", "32-63,96-127")[node])
        assert cpus == WorkerCpus(32, (own,) * 32, own, (node,), f"node{node}")
    assert plan.at(1) == plan.workers[1]
    assert plan.at(None) == plan.spare == WorkerCpus(32, copy="node0"), "no third copy"
    assert plan.advice == ""


def test_several_workers_share_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = CpuPlan.of(two_sockets(tmp_path).topology(monkeypatch), 4)
    assert [cpus.nodes for cpus in plan.workers] == [(0,), (0,), (1,), (1,)]


def test_a_worker_of_two_nodes_has_near_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = CpuPlan.of(four_nodes(tmp_path).topology(monkeypatch, distances=FOUR_DISTANCES), 2)
    assert [cpus.nodes for cpus in plan.workers] == [(0, 2), (1, 3)]
    assert [cpus.cpus for cpus in plan.workers] == [cpu_list("0-3,8-11"), cpu_list("4-7,12-15")]


def test_a_container_on_one_node_is_a_machine_of_one_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = two_sockets(tmp_path)
    machine.topology(monkeypatch)
    machine.write("proc/self/status", "Mems_allowed_list:\t1\n")
    topology = replace(Topology.of_host(tmp_path), cores=tuple(Core((cpu,), 1, 32) for cpu in range(32, 40)))
    assert CpuPlan.of(topology).workers == (WorkerCpus(8),)


@pytest.mark.parametrize(("quota", "workers", "each"), [(2.5, 1, 3), (2.5, 2, 1), (0.2, 1, 1), (128.0, 1, 64)])
def test_a_quota_limits_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: float, workers: int, each: int
) -> None:
    plan = CpuPlan.of(replace(two_sockets(tmp_path).topology(monkeypatch), quota=quota), workers)
    assert plan.workers[0].threads == each
    assert bool(plan.workers[0].pins) == (quota > 64)
    if quota < 64:
        assert plan.workers[0] == WorkerCpus(each), "any core, and memory wherever threads run"
        assert plan.not_pinned.startswith(f"a CPU quota of {quota:g} is less than 64 cores")


@pytest.mark.parametrize(
    ("workers", "threads", "bind", "reason"),
    [
        (1, 8, "auto", "1 x 8 threads do not fill 64 cores, and others may use them too"),
        (2, 64, "auto", "2 x 64 threads do not fill 64 cores, and others may use them too"),
        (1, 0, "nobind", "nobind"),
    ],
)
def test_threads_are_not_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, threads: int, bind: str, reason: str
) -> None:
    plan = CpuPlan.of(two_sockets(tmp_path).topology(monkeypatch), workers, threads, bind)
    assert plan.workers == (WorkerCpus(threads or 64),) * workers
    assert plan.not_pinned == reason


def test_the_number_of_threads_that_is_the_default_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = two_sockets(tmp_path).topology(monkeypatch)
    assert CpuPlan.of(topology, 2, 32) == CpuPlan.of(topology, 2)


def test_a_system_that_does_not_bind() -> None:
    topology = Topology(tuple(Core((cpu,)) for cpu in range(4)))
    assert CpuPlan.of(topology).not_pinned == "this system does not bind threads to CPUs"
    with pytest.raises(BindRefused, match="does not bind threads"):
        CpuPlan.of(topology, bind="0-3")


def test_a_list_has_a_thread_for_each_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = CpuPlan.of(two_sockets(tmp_path).topology(monkeypatch), 2, bind="0-1,64|40,41")
    assert plan.workers == (
        WorkerCpus(2, ((0, 64), (1,)), (0, 1, 64), (0,), "node0"),
        WorkerCpus(2, ((40,), (41,)), (40, 41), (1,), "node1"),
    )
    assert plan.spare == WorkerCpus(2, (), (0, 1, 40, 41, 64), (), "node0")


def test_fewer_threads_than_cores_of_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = CpuPlan.of(laptop(tmp_path).topology(monkeypatch), threads=2, bind="0-7")
    assert plan.workers == (WorkerCpus(2, ((0, 4), (1, 5)), tuple(range(8))),)


@pytest.mark.parametrize(
    ("workers", "threads", "bind", "message"),
    [
        (1, 0, "all", "'all' is not a CPU or a range of CPUs; write auto, nobind or CPUs such as 0-3,8"),
        (1, 0, "8-9", "may not use CPU 8-9, only 0-7"),
        (2, 0, "0-3", "has 1 lists for 2 workers; write one list of CPUs for each worker"),
        (1, 0, "0-1|2-3", "has 2 lists for 1 workers"),
        (2, 0, "0-3|", "a list of CPUs is empty"),
        (1, 5, "0-7", "5 threads do not fit on the 4 cores of CPUs 0-7"),
    ],
)
def test_a_list_that_is_not_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, threads: int, bind: str, message: str
) -> None:
    with pytest.raises(BindRefused) as refused:
        CpuPlan.of(laptop(tmp_path).topology(monkeypatch), workers, threads, bind)
    assert message in str(refused.value)
    assert str(refused.value).startswith(("threads_bind: ", "threads: "))
