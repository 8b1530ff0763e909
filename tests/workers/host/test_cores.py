"""Usable cores: affinity, cgroups and shared cores, on every path to a runner."""

import os
import re
from pathlib import Path

import pytest

from workers.host import cores as affinity
from workers.host.cores import Cores, cores_each, find_cores, usable_cores

ROOT = Path(__file__).parents[3]


def test_cores_are_limited_by_the_quota() -> None:
    """A count from the affinity mask alone would start one thread per core of the host."""
    sources = [file for package in ("actors", "gateway", "workers", "cli") for file in (ROOT / package).rglob("*.py")]
    count = re.compile(r"(sched_getaffinity|cpu_count)\(")
    counting = {file.relative_to(ROOT).as_posix() for file in sources if count.search(file.read_text(encoding="utf-8"))}
    assert counting == {"workers/host/cores.py", "cli/commands/doctor.py"}, "the doctor shows both counts"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 8 CPUs without hardware threads and without limits."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_no_memory_limit(root: Path) -> None:
    assert find_cores(root) == Cores(8, 8, None)
    assert usable_cores() >= 1  # the real one


@pytest.mark.parametrize(
    ("text", "usable"), [("max 100000", 8), ("250000 100000", 3), ("50000 100000", 1), ("junk", 8), ("1 0", 8)]
)
def test_a_quota_of_version_2(root: Path, text: str, usable: int) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/cpu.max", text)
    assert usable_cores(root) == usable


def test_the_smallest_quota_of_nested_groups_counts(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/system.slice/baton.service\n")
    write(root, "sys/fs/cgroup/system.slice/cpu.max", "200000 100000")
    write(root, "sys/fs/cgroup/system.slice/baton.service/cpu.max", "600000 100000")
    assert find_cores(root) == Cores(8, 8, 2.0)


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
@pytest.mark.parametrize("folder", ["/docker/0123", ""])
def test_a_quota_of_version_1_in_the_groups_folder_or_in_the_mount(root: Path, mount: str, folder: str) -> None:
    """In a container the path of the group is that of the host, and the mount is the container's own group."""
    write(root, "proc/self/cgroup", "9:memory:/docker/0123\n4:cpu,cpuacct:/docker/0123\n0::/\n")
    write(root, f"sys/fs/cgroup/{mount}{folder}/cpu.cfs_quota_us", "150000\n")
    write(root, f"sys/fs/cgroup/{mount}{folder}/cpu.cfs_period_us", "100000\n")
    write(root, "sys/fs/cgroup/memory/docker/0123/cpu.cfs_quota_us", "1\n")  # of another controller
    assert find_cores(root) == Cores(8, 8, 1.5)


def test_version_1_without_a_limit(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:cpu:/\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert find_cores(root).quota is None


def test_two_threads_of_a_core_are_one_core(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu in range(8):
        write(root, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu % 4},{cpu % 4 + 4}\n")
    assert find_cores(root) == Cores(8, 4, None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 4, 1})
    assert find_cores(root) == Cores(3, 2, None)


@pytest.mark.parametrize(
    ("cores", "text", "usable"),
    [
        (Cores(1, 1, None), "1 core", 1),
        (Cores(16, 8, None), "8 cores, 16 hardware threads", 8),
        (Cores(16, 8, 2.5), "8 cores, 16 hardware threads, a quota of 2.5", 3),
        (Cores(2, 2, 0.2), "2 cores, a quota of 0.2", 1),
    ],
)
def test_as_text(cores: Cores, text: str, usable: int) -> None:
    assert (str(cores), cores.usable) == (text, usable)


@pytest.mark.parametrize(("workers", "each"), [(1, 7), (2, 3), (7, 1), (8, 1)])
def test_workers_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch, workers: int, each: int) -> None:
    monkeypatch.setattr(affinity, "usable_cores", lambda: 7)
    assert cores_each(workers) == each
