"""The emulated devices of the targets for AArch64."""

from collections.abc import Mapping

import pytest

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
pytest.importorskip("jax", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")

from tests.workers.iree.aarch64.device import EmulatedDevice
from tests.workers.iree.aarch64.emulator import COMMAND, Emulator
from workers.precision import CpuTarget

CPUS: Mapping[CpuTarget, str] = {"neon": "cortex-a72", "neon-dotprod": "neoverse-n1", "neon-i8mm": "max"}
"""CPUs that QEMU emulates: the first two have the instructions of their target and not those of the next one."""


def emulated(target: CpuTarget, uri: str = "local-sync", threads: int = 1) -> EmulatedDevice:
    """Return the device of a target. Skips the test if no emulator was set up."""
    emulator = Emulator.find(CPUS[target])
    if emulator is None:
        pytest.skip(f"no emulator of AArch64 is set up: {COMMAND}")
    return EmulatedDevice(emulator, uri, threads, target)
