"""IREE's drivers by their names, and which one computes a model, with how many threads. Imports nothing of IREE."""

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.tensors import parameter_count
from workers.host.cores import cores_each

DEFAULT_DEVICE = "local-task"
ALONE = "local-sync"
"""The driver on which the thread that calls computes."""
GENERIC_DEVICE = "generic-task"
"""`local-task` as if it were a GPU: with its graphs, and memory that the host does not see. So they can be tried."""
LOCAL_DRIVERS = (DEFAULT_DEVICE, ALONE)
"""Drivers that compute on this CPU, in this process's memory, the same numbers to the bit."""
FEW_PARAMETERS = 4 << 20
"""A model that has no more is computed by one thread: to wake others takes as long as they save (docs/adr/0044)."""


def driver_of(device: str) -> str:
    """The driver that a device's URI begins with."""
    return device.partition("://")[0]


def choose_device(device: str, threads: int, config: ModelConfig, workers: int = 1) -> tuple[str, int]:
    """The device's URI and how many threads compute, where an empty URI and 0 leave the choice to us.

    `workers` share the cores of this machine. One thread is the one that asks: it waits for nobody, and wakes nobody.
    """
    if not threads:
        small = not device and parameter_count(config) <= FEW_PARAMETERS
        threads = 1 if small else cores_each(workers)
    if driver_of(device) == ALONE or (not device and threads == 1):
        return device or ALONE, 1
    return device or DEFAULT_DEVICE, threads
