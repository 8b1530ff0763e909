"""The state and the out-of-memory kills of a process, as the Linux kernel reports them. Elsewhere: nothing."""

from dataclasses import dataclass
from pathlib import Path

from actors.process.cgroups import ROOT, cgroups


def state_of(pid: int, root: Path = ROOT) -> str | None:
    """The letter of a process's state (proc_pid_stat(5)), or None where nobody tells. `root` is for tests."""
    text = _read(root / "proc" / str(pid) / "stat")
    after_name = text.rpartition(")")[2].split()  # the name may contain anything
    return after_name[0] if after_name else None


@dataclass(frozen=True, slots=True)
class OomKills:
    """Counts of processes that the kernel had killed for memory at one moment. A count is None where it is not kept."""

    group: str
    """The folder of the cgroup that counts; empty when none does."""
    in_group: int | None
    """`oom_kill` of its `memory.events`: of this cgroup's processes, by any kind of OOM killer (cgroup v2)."""
    on_machine: int | None
    """`oom_kill` of /proc/vmstat: all, also those of other containers."""

    @classmethod
    def now(cls, pid: int | None = None, root: Path = ROOT) -> "OomKills":
        """Read the counts for the cgroup of a process, which may be dead and not reaped; without `pid`, of this one,
        whose cgroup its children inherit. Raises nothing. `root` is for tests."""
        on_machine = _count(_read(root / "proc" / "vmstat"))
        for folder in cgroups("memory", pid, root):
            # Where the memory controller is off in a cgroup, its memory is its parent's.
            if text := _read(folder / "memory.events"):
                return cls(str(folder), _count(text), on_machine)
        return cls("", None, on_machine)


def killed_for_memory(before: OomKills, after: OomKills) -> bool | None:
    """Return whether the kernel killed for memory between two moments, in the cgroup or else on the machine; None if
    unknown. It counts before it kills: a death that is known has been counted."""
    if before.group == after.group and before.in_group is not None and after.in_group is not None:
        return after.in_group > before.in_group
    if before.on_machine is not None and after.on_machine is not None:
        return after.on_machine > before.on_machine
    return None


def _count(text: str) -> int | None:
    """The value of the line `oom_kill N`."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None


def _read(path: Path) -> str:
    """Empty when there is no such file, or none that may be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
