"""Counts the cores that this process may use: CPU affinity, cgroup quotas, and hardware threads that share a core."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from actors.process.cgroups import ROOT, cgroups


@dataclass(frozen=True, slots=True)
class Cores:
    """CPUs that this process may run on."""

    threads: int
    """Number of hardware threads in the affinity mask."""
    cores: int
    """Number of their cores: two threads of one core share its vector units and caches."""
    quota: float | None
    """Smallest CPU quota of the cgroups, in CPUs; None without a limit."""

    @property
    def usable(self) -> int:
        """Number of compute threads that do not compete for a core, at least 1."""
        return max(1, self.cores if self.quota is None else min(self.cores, math.ceil(self.quota)))

    def __str__(self) -> str:
        limit = "" if self.quota is None else f", a quota of {self.quota:g}"
        shared = "" if self.threads == self.cores else f", {self.threads} hardware threads"
        return f"{self.cores} core{'s' if self.cores > 1 else ''}{shared}{limit}"


def usable_cores(root: Path = ROOT) -> int:
    """Return the default number of compute threads.

    In a container `os.cpu_count` counts the CPUs of the host, and with one thread more than there are cores every step
    waits for the thread that is not scheduled.
    """
    return find_cores(root).usable


def cores_each(workers: int) -> int:
    """Return the `usable_cores` of each of `workers` that share the machine, at least 1."""
    return max(1, usable_cores() // workers)


def find_cores(root: Path = ROOT) -> Cores:
    """Read the affinity mask, cgroups of version 1 and 2, and the topology of the CPUs under `root`."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = {_siblings(root, cpu) for cpu in cpus}
    return Cores(len(cpus), len(siblings), min(_quotas(root), default=None))


def _siblings(root: Path, cpu: int) -> str:
    """Return the hardware threads of the CPU's core as the kernel lists them, or the CPU itself if it does not."""
    file = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    try:
        return file.read_text().strip() or str(cpu)
    except OSError:
        return str(cpu)


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
