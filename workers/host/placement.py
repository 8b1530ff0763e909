"""Applies a worker's part of the CPU plan to the thread that loads its model, and to the memory of its weights."""

import mmap
import os
from collections.abc import Sequence

import structlog

from workers.host.cpu_plan import WorkerCpus
from workers.host.numa_policy import is_spread, move_to, use_memory_of

MADV_POPULATE_READ = 22
"""madvise(2), from Linux 5.14 on; Python has no name for it."""
ADVICE = "in a container, allow these calls with --cap-add SYS_NICE"


def place_thread(cpus: WorkerCpus) -> None:
    """Bind the calling thread, and all that it starts, to the CPUs and the memory of a worker.

    A sandbox that forbids it gets a warning: the worker is then slower, and computes the same.
    """
    try:
        if cpus.cpus:
            os.sched_setaffinity(0, cpus.cpus)
        if cpus.nodes:
            use_memory_of(cpus.nodes)
    except OSError as error:
        _warn("worker_not_placed", cpus.nodes, error)


def place_file(memory: mmap.mmap, address: int, nodes: Sequence[int]) -> None:
    """Read a mapped file into the memory of the nodes, and move what is elsewhere already.

    The page cache has each page once: it lies where the thread ran that read it first.
    """
    try:
        memory.madvise(MADV_POPULATE_READ)
        if len(nodes) == 1 or not is_spread(address, len(memory), nodes):
            move_to(address, len(memory), nodes)
    except OSError as error:
        _warn("weights_not_placed", nodes, error)


def _warn(event: str, nodes: Sequence[int], error: OSError) -> None:
    structlog.get_logger().warning(event, nodes=list(nodes), problem=error.strerror or str(error), advice=ADVICE)
