"""Machines as the kernel describes them in /sys and /proc, written into a folder for tests."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from workers.host.cpu_list import cpu_text
from workers.host.topology import Topology

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"


@dataclass
class Machine:
    """A machine without cores; each `add` adds some."""

    root: Path
    nodes: dict[int, list[int]] = field(default_factory=dict)
    """The CPUs of each NUMA node."""

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def add(self, cores: Iterable[Sequence[int]], node: int = 0, capacity: int | None = None) -> None:
        """Add cores, each with the numbers of its hardware threads, which share one last-level cache."""
        cores = list(cores)
        cache = cpu_text(cpu for core in cores for cpu in core)
        for core in cores:
            for cpu in core:
                self.write(f"{CPUS}/cpu{cpu}/topology/core_cpus_list", cpu_text(core))
                for index, (level, shared) in enumerate([(2, cpu_text(core)), (3, cache)]):
                    self.write(f"{CPUS}/cpu{cpu}/cache/index{index}/level", f"{level}\n")
                    self.write(f"{CPUS}/cpu{cpu}/cache/index{index}/shared_cpu_list", f"{shared}\n")
                if capacity is not None:
                    self.write(f"{CPUS}/cpu{cpu}/cpu_capacity", f"{capacity}\n")
            self.nodes.setdefault(node, []).extend(core)

    def topology(
        self, monkeypatch: pytest.MonkeyPatch, cpus: Iterable[int] | None = None, distances: Sequence[str] = ()
    ) -> Topology:
        """Write the NUMA nodes, and read everything as a process with this affinity mask does."""
        for number, own in self.nodes.items():
            self.write(f"{NODES}/node{number}/cpulist", cpu_text(own) + "\n")
        for number, line in enumerate(distances):
            self.write(f"{NODES}/node{number}/distance", line + "\n")
        nodes = cpu_text(self.nodes)
        self.write(f"{NODES}/has_memory", nodes + "\n")
        self.write("proc/self/status", f"Name:\tpython\nMems_allowed_list:\t{nodes}\n")
        mask = set(cpus) if cpus is not None else {cpu for own in self.nodes.values() for cpu in own}
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: mask, raising=False)
        return Topology.of_host(self.root)


def laptop(root: Path) -> Machine:
    """Four cores with two hardware threads each, numbered as Linux does on x86."""
    machine = Machine(root)
    machine.add((core, core + 4) for core in range(4))
    return machine


def hybrid(root: Path) -> Machine:
    """An Intel CPU with six performance cores of two threads, eight efficiency cores, and one cache for all."""
    machine = Machine(root)
    machine.add([(2 * core, 2 * core + 1) for core in range(6)] + [(cpu,) for cpu in range(12, 20)])
    machine.write("sys/devices/cpu_core/cpus", "0-11\n")
    machine.write("sys/devices/cpu_atom/cpus", "12-19\n")
    return machine


def big_little(root: Path) -> Machine:
    """An Arm CPU with two large, two medium and four small cores; nodes and caches are not listed."""
    machine = Machine(root)
    for cpus, capacity in (((0, 1, 2, 3), 250), ((4, 5), 620), ((6, 7), 1024)):
        for cpu in cpus:
            machine.write(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list", f"{cpu}\n")
            machine.write(f"{CPUS}/cpu{cpu}/cpu_capacity", f"{capacity}\n")
    return machine


def epyc(root: Path) -> Machine:
    """64 cores with two threads each, of which eight share a cache; one NUMA node."""
    machine = Machine(root)
    for cache in range(8):
        machine.add((core, core + 64) for core in range(8 * cache, 8 * cache + 8))
    return machine


def two_sockets(root: Path) -> Machine:
    """Two sockets with 32 cores of two threads, one cache and one NUMA node each."""
    machine = Machine(root)
    for node in range(2):
        machine.add([(core, core + 64) for core in range(32 * node, 32 * node + 32)], node)
    return machine


def four_nodes(root: Path) -> Machine:
    """Two sockets of two NUMA nodes each, whose numbers alternate between the sockets."""
    machine = Machine(root)
    for node in range(4):
        machine.add([(core,) for core in range(4 * node, 4 * node + 4)], node)
    return machine


FOUR_DISTANCES = ("10 21 12 21", "21 10 21 12", "12 21 10 21", "21 12 21 10")
"""Nodes 0 and 2 are near, and so are 1 and 3."""
