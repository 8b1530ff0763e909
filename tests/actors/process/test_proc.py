"""Kernel data on a process: read from its files, and judged."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from actors.process.proc import OomKills, killed_for_memory, state_of


class Files:
    """A folder with what the kernel would show."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys" / "fs" / "cgroup").mkdir(parents=True)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def process(self, cgroup: str, pid: int | str = "self") -> None:
        self.write(f"proc/{pid}/cgroup", cgroup)

    def count(self, group: str, kills: int) -> None:
        self.write(
            f"sys/fs/cgroup{group}/memory.events", f"low 0\noom {kills + 7}\noom_kill {kills}\noom_group_kill 0\n"
        )

    def machine(self, kills: int) -> None:
        self.write("proc/vmstat", f"nr_free_pages 11\noom_kill {kills}\noom_kill_other 99\n")

    def now(self, pid: int | None = None) -> OomKills:
        return OomKills.now(pid, self.root)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_its_own_cgroup_counts_and_a_neighbours_does_not(files: Files) -> None:
    files.process("1:name=systemd:/x\n0::/baton.service\n")
    files.count("/baton.service", 3)
    files.machine(10)
    before = files.now()
    assert (before.in_group, before.on_machine) == (3, 10)
    files.machine(11)
    assert killed_for_memory(before, files.now()) is False, "it was another container's"
    files.count("/baton.service", 4)
    assert killed_for_memory(before, files.now()) is True


def test_where_a_cgroup_does_not_count_its_parent_does(files: Files) -> None:
    files.process("0::/pod/leaf\n")
    files.count("/pod", 1)
    before = files.now()
    assert before.group.endswith("/pod")
    files.count("/pod", 2)
    assert killed_for_memory(before, files.now()) is True


def test_a_child_that_was_put_elsewhere_is_judged_by_the_machine(files: Files) -> None:
    files.process("0::/here\n")
    files.process("0::/there\n", 77)
    files.count("/here", 1)
    files.count("/there", 5)
    files.machine(6)
    before = files.now()
    assert killed_for_memory(before, files.now(77)) is False
    files.machine(7)
    assert killed_for_memory(before, files.now(77)) is True


@pytest.mark.parametrize("cgroup", ["4:memory:/x\n", "0::/../outside\n", ""], ids=["v1", "not mounted", "none"])
def test_without_a_cgroup_that_counts_the_machine_does(files: Files, cgroup: str) -> None:
    files.process(cgroup)
    files.machine(0)
    before = files.now()
    assert (before.group, before.in_group) == ("", None)
    assert killed_for_memory(before, files.now()) is False
    files.machine(1)
    assert killed_for_memory(before, files.now()) is True


def test_where_nobody_counts_nobody_knows(files: Files) -> None:
    assert files.now() == OomKills("", None, None)
    assert killed_for_memory(files.now(), files.now()) is None
    files.machine(1)
    assert killed_for_memory(OomKills("", None, None), files.now()) is None


def test_the_state_is_behind_whatever_name(files: Files) -> None:
    files.write("proc/5/stat", "5 (a) R (b) T 1 5 5 0 -1\n")
    assert state_of(5, files.root) == "T"
    assert state_of(6, files.root) is None


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's files")
def test_a_suspended_process_is_seen_to_be() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert state_of(process.pid) != "T"
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            assert state_of(process.pid) == "T"
        finally:
            process.kill()
    assert state_of(process.pid) is None


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's files")
def test_this_machine_counts() -> None:
    now = OomKills.now()
    assert killed_for_memory(now, now) is False
