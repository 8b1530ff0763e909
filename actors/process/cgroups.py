"""The control groups that a process is in, as folders with the kernel's files (cgroups(7)). Elsewhere: none."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def cgroups(controller: str, pid: int | None = None, root: Path = ROOT) -> Iterator[Path]:
    """The folders of a process's cgroups (this one's without `pid`) up to their mounts, innermost first; those of
    version 1 of one controller. They need not exist. `root` is for tests.

    In a container the path may be the host's and not be there; the mount itself is then the container's own cgroup. A
    path that leaves what is mounted here names a cgroup that cannot be seen, whose files are not those of the mount.
    """
    try:
        lines = (root / f"proc/{pid or 'self'}/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines or ["0::/"]:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        inside = PurePosixPath(path.strip("/"))
        if (controllers and controller not in controllers.split(",")) or ".." in inside.parts:
            continue
        for mount in (controllers, controller, "unified", "") if controllers else ("", "unified"):
            base = root / "sys/fs/cgroup" / mount
            yield from dict.fromkeys(base / level for level in (inside, *inside.parents))
