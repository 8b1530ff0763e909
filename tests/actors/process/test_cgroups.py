"""Folders of a process's control groups, in either version, in a container and outside."""

from pathlib import Path

import pytest

from actors.process.cgroups import cgroups

MOUNT = "sys/fs/cgroup"


def found(root: Path, controller: str = "memory", pid: int | None = None) -> list[str]:
    return [str(folder.relative_to(root)) for folder in cgroups(controller, pid, root)]


def say(root: Path, text: str, process: str = "self") -> None:
    file = root / "proc" / process / "cgroup"
    file.parent.mkdir(parents=True)
    file.write_text(text)


def test_version_2_from_the_innermost_to_the_mount(tmp_path: Path) -> None:
    say(tmp_path, "0::/a.slice/b\n")
    assert found(tmp_path)[:3] == [f"{MOUNT}/a.slice/b", f"{MOUNT}/a.slice", MOUNT]


def test_version_1_of_the_controller_that_is_asked_for(tmp_path: Path) -> None:
    say(tmp_path, "9:memory:/m\n4:cpu,cpuacct:/c\n")
    assert found(tmp_path)[:2] == [f"{MOUNT}/memory/m", f"{MOUNT}/memory"]
    assert found(tmp_path, "cpu")[:4] == [
        f"{MOUNT}/cpu,cpuacct/c",
        f"{MOUNT}/cpu,cpuacct",
        f"{MOUNT}/cpu/c",
        f"{MOUNT}/cpu",
    ]


def test_another_process_has_its_own(tmp_path: Path) -> None:
    say(tmp_path, "0::/here\n")
    say(tmp_path, "0::/there\n", "77")
    assert found(tmp_path, pid=77)[0] == f"{MOUNT}/there"


@pytest.mark.parametrize("text", ["0::/../outside\n", "0::/..\n"])
def test_what_is_outside_of_the_mount_is_not_the_mount(tmp_path: Path, text: str) -> None:
    say(tmp_path, text)
    assert found(tmp_path) == []


def test_without_a_word_of_the_kernel_the_mount_is_tried(tmp_path: Path) -> None:
    assert found(tmp_path) == [MOUNT, f"{MOUNT}/unified"]
