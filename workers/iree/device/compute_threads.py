"""The compute threads of IREE's local-task driver: found by their names, and pinned to CPUs.

IREE's own flag for CPUs, --task_topology_cpu_ids, pins a thread to exactly one, and each use of it in a process adds
another group of threads.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

NAME = "iree-worker-"
"""The beginning of their names; a number follows."""
TASKS = Path("/proc/self/task")
POLL_S, POLLS = 0.002, 500
"""A thread names itself when it first runs."""


def compute_threads(tasks: Path = TASKS) -> dict[int, int]:
    """Return the numbers of the compute threads by their thread ids; nothing on systems without /proc."""
    found = {}
    for task in tasks.glob("[0-9]*"):
        try:
            name = (task / "comm").read_text().strip()
        except OSError:
            continue  # it has ended
        if name.startswith(NAME):
            found[int(task.name)] = int(name.removeprefix(NAME))
    return found


def pin_threads(pins: Sequence[Sequence[int]], before: set[int]) -> None:
    """Pin the threads that a device has started to the CPUs of `pins`, by their numbers; `before` are the ids of those
    that there were. A failure is logged: they then run wherever the kernel lets them."""
    new: dict[int, int] = {}
    for _ in range(POLLS):
        new = {thread: number for thread, number in compute_threads().items() if thread not in before}
        if len(new) >= len(pins):
            break
        time.sleep(POLL_S)
    try:
        for thread, number in new.items():
            os.sched_setaffinity(thread, pins[number % len(pins)])
    except OSError as error:
        structlog.get_logger().warning("threads_not_pinned", problem=error.strerror)
    if len(new) < len(pins):
        structlog.get_logger().warning("threads_not_pinned", problem=f"{len(new)} of {len(pins)} were found")
