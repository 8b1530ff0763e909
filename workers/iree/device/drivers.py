"""IREE's drivers by name, and the choice of one and of its threads for a model. Imports nothing of IREE."""

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.tensors import parameter_count
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.encoders.tensors import encoder_parameter_count

DEFAULT_DEVICE = "local-task"
SINGLE_THREAD_DEVICE = "local-sync"
"""The driver whose calls compute in the calling thread."""
GENERIC_DEVICE = "generic-task"
"""`local-task` with the graphs of GPUs, and with memory that the host does not see: a rehearsal of a GPU."""
LOCAL_DRIVERS = (DEFAULT_DEVICE, SINGLE_THREAD_DEVICE)
"""Drivers that compute on this CPU, in this process's memory, with bitwise identical results."""
SMALL_MODEL_PARAMETERS = 4 << 20
"""Models of no more parameters run on one thread: waking others takes as long as they save (docs/adr/0044)."""


def verifies_drafts(device: str, slots: int) -> bool:
    """Return whether decode steps on a device, "" for the default one, can verify drafted tokens: there are rows for
    them beside one row of another slot, with the same bits as alone."""
    return slots > 1 and driver_of(device or DEFAULT_DEVICE) in LOCAL_DRIVERS


def driver_of(device: str) -> str:
    """Return the driver that a device's URI begins with."""
    return device.partition("://")[0]


def choose_device(device: str, threads: int, config: ModelConfig | EncoderConfig, planned: int) -> tuple[str, int]:
    """Return the device's URI and how many threads compute; an empty URI and 0 threads leave the choice to us.

    `planned` is the number of threads for which the worker has cores. With one thread the caller computes, and wakes no
    other.
    """
    if not threads:
        count = encoder_parameter_count(config) if isinstance(config, EncoderConfig) else parameter_count(config)
        small = not device and count <= SMALL_MODEL_PARAMETERS
        threads = 1 if small else planned
    if driver_of(device) == SINGLE_THREAD_DEVICE or (not device and threads == 1):
        return device or SINGLE_THREAD_DEVICE, 1
    return device or DEFAULT_DEVICE, threads
