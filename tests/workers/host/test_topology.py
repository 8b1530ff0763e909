"""Topology: affinity, cgroup quotas, shared cores, caches, nodes and slower cores, as the kernel's files have them."""

import os
import re
from collections.abc import Callable
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
from workers.host.topology import ATOM_CAPACITY, Core, Topology, usable_cores

ROOT = Path(__file__).parents[3]


def test_cores_are_limited_by_the_quota() -> None:
    """A count from the affinity mask alone would start one thread per core of the host."""
    sources = [file for package in ("actors", "gateway", "workers", "cli") for file in (ROOT / package).rglob("*.py")]
    count = re.compile(r"(sched_getaffinity|cpu_count)\(")
    counting = {file.relative_to(ROOT).as_posix() for file in sources if count.search(file.read_text(encoding="utf-8"))}
    assert counting == {"workers/host/topology.py", "cli/commands/doctor.py"}, "the doctor shows both counts"


def test_this_machine_has_a_core() -> None:
    assert usable_cores() >= 1
    assert str(Topology.of_host())


@pytest.mark.parametrize(
    ("make", "text", "usable"),
    [
        (laptop, "4 cores, 8 hardware threads", 4),
        (hybrid, "14 cores, 20 hardware threads", 14),
        (epyc, "64 cores, 128 hardware threads, 8 last-level caches", 64),
        (two_sockets, "64 cores, 128 hardware threads, 2 last-level caches, 2 NUMA nodes", 64),
    ],
)
def test_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Machine], text: str, usable: int
) -> None:
    topology = make(tmp_path).topology(monkeypatch)
    assert (str(topology), topology.usable) == (text, usable)


def test_hardware_threads_of_one_core_are_one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = laptop(tmp_path).topology(monkeypatch, cpus={0, 4, 1})
    assert topology.cores == (Core((0, 4)), Core((1,)))
    assert topology.can_bind


def test_cores_are_listed_with_their_node_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = two_sockets(tmp_path).topology(monkeypatch, cpus={31, 32, 95})
    assert topology.cores == (Core((31, 95), 0, 0), Core((32,), 1, 32))
    assert topology.memory_nodes == {0, 1}


def test_near_nodes_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = four_nodes(tmp_path).topology(monkeypatch, distances=FOUR_DISTANCES)
    assert topology.nodes == (0, 2, 1, 3)


def test_without_distances_nodes_are_in_the_order_of_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert four_nodes(tmp_path).topology(monkeypatch).nodes == (0, 1, 2, 3)


def test_a_cpuset_limits_the_memory_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = two_sockets(tmp_path)
    machine.topology(monkeypatch)
    machine.write("proc/self/status", "Mems_allowed_list:\t1\n")
    assert Topology.of_host(tmp_path).memory_nodes == {1}


def test_few_efficiency_cores_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten cores at half the speed are fewer than six at the whole."""
    topology = hybrid(tmp_path).topology(monkeypatch, cpus=range(16))
    assert [core.threads for core in topology.fast_cores] == [(2 * core, 2 * core + 1) for core in range(6)]
    assert topology.cores[-1] == Core((15,), capacity=ATOM_CAPACITY)
    assert str(topology) == "10 cores, 6 of them fast, 16 hardware threads"


def test_many_efficiency_cores_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = hybrid(tmp_path).topology(monkeypatch)
    assert topology.fast_cores == topology.cores


def test_a_process_on_slow_cores_alone_uses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hybrid(tmp_path).topology(monkeypatch, cpus=range(12, 20)).usable == 8


def test_small_cores_of_an_arm_cpu_are_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = big_little(tmp_path).topology(monkeypatch, cpus=range(8))
    assert [core.threads for core in topology.fast_cores] == [(4,), (5,), (6,), (7,)]


def test_a_system_without_these_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    topology = Topology.of_host(tmp_path)
    assert (len(topology.cores), topology.quota, topology.nodes, topology.can_bind) == (10, None, (0,), False)


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine of 8 CPUs without hardware threads and without limits."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("text", "usable"), [("max 100000", 8), ("250000 100000", 3), ("50000 100000", 1), ("junk", 8), ("1 0", 8)]
)
def test_a_quota_of_version_2(eight: Machine, text: str, usable: int) -> None:
    eight.write("proc/self/cgroup", "0::/\n")
    eight.write("sys/fs/cgroup/cpu.max", text)
    assert usable_cores(eight.root) == usable


def test_the_smallest_quota_of_nested_groups_counts(eight: Machine) -> None:
    eight.write("proc/self/cgroup", "0::/system.slice/baton.service\n")
    eight.write("sys/fs/cgroup/system.slice/cpu.max", "200000 100000")
    eight.write("sys/fs/cgroup/system.slice/baton.service/cpu.max", "600000 100000")
    topology = Topology.of_host(eight.root)
    assert (topology.quota, str(topology)) == (2.0, "8 cores, a quota of 2")


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
@pytest.mark.parametrize("folder", ["/docker/0123", ""])
def test_a_quota_of_version_1_in_the_groups_folder_or_in_the_mount(eight: Machine, mount: str, folder: str) -> None:
    """In a container the path of the group is that of the host, and the mount is the container's own group."""
    eight.write("proc/self/cgroup", "9:memory:/docker/0123\n4:cpu,cpuacct:/docker/0123\n0::/\n")
    eight.write(f"sys/fs/cgroup/{mount}{folder}/cpu.cfs_quota_us", "150000\n")
    eight.write(f"sys/fs/cgroup/{mount}{folder}/cpu.cfs_period_us", "100000\n")
    eight.write("sys/fs/cgroup/memory/docker/0123/cpu.cfs_quota_us", "1\n")  # of another controller
    assert Topology.of_host(eight.root).quota == 1.5


def test_version_1_without_a_limit(eight: Machine) -> None:
    eight.write("proc/self/cgroup", "4:cpu:/\n")
    eight.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    eight.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert Topology.of_host(eight.root).quota is None
