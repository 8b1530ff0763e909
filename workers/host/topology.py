"""The CPUs that this process may use: cores, caches, NUMA nodes, speeds, and the quota of its cgroups.

Read from the affinity mask, which is within the cpuset of the process's cgroup, and from the kernel's files below /sys
and /proc (sysfs-devices-system-cpu in the kernel's ABI documentation). Where these are missing, as on macOS, every CPU
counts as a core of its own.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.process.cgroups import ROOT, cgroups
from workers.host.cpu_list import cpu_list

FULL_CAPACITY = 1024
"""The capacity of the fastest cores (cpu_capacity in the kernel's ABI documentation)."""
ATOM_CAPACITY = 512
"""The capacity that efficiency cores of Intel's hybrid CPUs count as: the kernel lists them, without a figure."""
_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core."""

    threads: tuple[int, ...]
    """The numbers of its CPUs, which are its hardware threads; only those that the process may use."""
    node: int = 0
    """Its NUMA node."""
    cache: int = 0
    """The first of the CPUs that share its last-level cache."""
    capacity: int = FULL_CAPACITY


@dataclass(frozen=True, slots=True)
class Topology:
    """Cores that this process may run on."""

    cores: tuple[Core, ...]
    """By node, each followed by the nearest of those that are left, then by cache."""
    quota: float | None = None
    """Smallest CPU quota of the cgroups, in CPUs; None without a limit."""
    memory_nodes: frozenset[int] = frozenset()
    """NUMA nodes whose memory the process may use."""
    can_bind: bool = False
    """The system can bind threads to CPUs."""

    @classmethod
    def of_host(cls, root: Path = ROOT) -> "Topology":
        """Read the topology of this machine. `root` is for tests."""
        can_bind = hasattr(os, "sched_getaffinity")
        cpus = sorted(os.sched_getaffinity(0)) if can_bind else range(os.cpu_count() or 1)
        return cls(_cores(root, cpus), min(_quotas(root), default=None), _memory_nodes(root), can_bind)

    @property
    def fast_cores(self) -> tuple[Core, ...]:
        """The cores that compute most together if each does as much as the slowest one of them: a kernel ends with its
        slowest thread. A few fast cores leave slow ones in, many leave them out."""
        capacities = {core.capacity for core in self.cores}
        least = max(capacities, key=lambda least: (least * sum(core.capacity >= least for core in self.cores), least))
        return tuple(core for core in self.cores if core.capacity >= least)

    @property
    def usable(self) -> int:
        """Number of compute threads that do not compete for a core, at least 1."""
        cores = len(self.fast_cores)
        return max(1, cores if self.quota is None else min(cores, math.ceil(self.quota)))

    @property
    def nodes(self) -> tuple[int, ...]:
        """The NUMA nodes of the cores, in their order."""
        return tuple(dict.fromkeys(core.node for core in self.cores))

    def __str__(self) -> str:
        cores, fast = len(self.cores), len(self.fast_cores)
        threads = sum(len(core.threads) for core in self.cores)
        caches = len({core.cache for core in self.cores})
        parts = [f"{cores} core{'s' if cores > 1 else ''}"]
        parts += [f"{fast} of them fast"] if fast < cores else []
        parts += [f"{threads} hardware threads"] if threads > cores else []
        parts += [f"{caches} last-level caches"] if caches > 1 else []
        parts += [f"{len(self.nodes)} NUMA nodes"] if len(self.nodes) > 1 else []
        parts += [] if self.quota is None else [f"a quota of {self.quota:g}"]
        return ", ".join(parts)


def usable_cores(root: Path = ROOT) -> int:
    """Return the default number of compute threads of one worker.

    In a container `os.cpu_count` counts the CPUs of the host, and with one thread more than there are cores every step
    waits for the thread that is not scheduled.
    """
    return Topology.of_host(root).usable


def _cores(root: Path, cpus: Sequence[int]) -> tuple[Core, ...]:
    """Group CPUs by core."""
    node_of = {cpu: number for number, found in _nodes(root).items() for cpu in found}
    atoms = frozenset(_cpus(root / "sys/devices/cpu_atom/cpus"))
    threads: dict[tuple[int, ...], list[int]] = {}
    for cpu in cpus:
        threads.setdefault(_siblings(root, cpu), []).append(cpu)
    order = {node: place for place, node in enumerate(_node_order(root, sorted(set(node_of.values()))))}
    cores = []
    for own in threads.values():
        slow = ATOM_CAPACITY if own[0] in atoms else FULL_CAPACITY
        capacity = _number(root / f"{_CPUS}/cpu{own[0]}/cpu_capacity", slow)
        cores.append(Core(tuple(own), node_of.get(own[0], 0), _cache(root, own[0]), capacity))
    return tuple(sorted(cores, key=lambda core: (order.get(core.node, 0), core.cache, core.threads)))


def _siblings(root: Path, cpu: int) -> tuple[int, ...]:
    """Return the hardware threads of the CPU's core, or the CPU itself if the kernel does not list them."""
    folder = root / f"{_CPUS}/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second one is the older name
        if found := _cpus(folder / name):
            return found
    return (cpu,)


def _cache(root: Path, cpu: int) -> int:
    """Return the first CPU that shares the last-level cache, or 0 if the kernel lists no caches."""
    levels = [
        (_number(folder / "level"), shared[0])
        for folder in (root / f"{_CPUS}/cpu{cpu}/cache").glob("index*")
        if (shared := _cpus(folder / "shared_cpu_list"))
    ]
    return max(levels, default=(0, 0))[1]


def _nodes(root: Path) -> dict[int, tuple[int, ...]]:
    """Return the CPUs of each NUMA node."""
    folders = (root / _NODES).glob("node[0-9]*")
    return {int(folder.name.removeprefix("node")): _cpus(folder / "cpulist") for folder in folders}


def _node_order(root: Path, nodes: Sequence[int]) -> Iterator[int]:
    """Yield the nodes: the first one, then always the nearest of those that are left."""
    left = list(nodes)
    while left:
        node = left.pop(0)
        yield node
        distances = _distances(root, node, nodes)
        left.sort(key=lambda other: distances.get(other, 0))


def _distances(root: Path, node: int, nodes: Sequence[int]) -> dict[int, int]:
    """Return the distances of a node to all, which the kernel lists in the order of their numbers."""
    try:
        listed = (root / f"{_NODES}/node{node}/distance").read_text().split()
        return dict(zip(nodes, map(int, listed), strict=False))
    except (OSError, ValueError):
        return {}


def _memory_nodes(root: Path) -> frozenset[int]:
    """Return the nodes of the process's cpuset (Mems_allowed_list, proc(5)) that have memory."""
    has_memory = frozenset(_cpus(root / f"{_NODES}/has_memory"))
    try:
        lines = (root / "proc/self/status").read_text().splitlines()
    except OSError:
        return has_memory
    allowed = (line.partition(":")[2] for line in lines if line.startswith("Mems_allowed_list:"))
    return has_memory & frozenset(cpu_list(next(allowed, "").strip()))


def _cpus(file: Path) -> tuple[int, ...]:
    try:
        return cpu_list(file.read_text().strip())
    except (OSError, ValueError):
        return ()


def _number(file: Path, default: int = 0) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return default


def _quotas(root: Path) -> Iterator[float]:
    """Yield the CPU limits of this process's cgroups and their parents, in CPUs (cgroups(7), cgroup v2's cpu.max)."""
    for folder in cgroups("cpu", root=root):
        for read in (_quota_v2, _quota_v1):
            try:
                quota, period = read(folder)
                if quota > 0 and period > 0:
                    yield quota / period
            except (OSError, ValueError):
                pass  # another cgroup version, or no limit


def _quota_v2(folder: Path) -> tuple[int, int]:
    quota, period = (folder / "cpu.max").read_text().split()
    return int(quota), int(period)  # "max" is not an integer and means no limit


def _quota_v1(folder: Path) -> tuple[int, int]:
    return int((folder / "cpu.cfs_quota_us").read_text()), int((folder / "cpu.cfs_period_us").read_text())
