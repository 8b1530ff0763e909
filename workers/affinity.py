"""How many cores this process may really use."""

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Cores by the scheduler's affinity mask and the cgroup's quota, whichever is fewer, at least 1.

    `os.cpu_count` would count the host's cores in a container, and a thread more than there are cores makes every
    step wait for the one that is not scheduled.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cgroup.read_text().split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        pass  # no cgroup v2, or no quota in it
    return max(1, cores)
