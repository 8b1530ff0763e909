"""CPUs whose instructions this machine may have or not."""

import pytest

from workers.iree.device.cpu import Cpu, CpuError
from workers.precision import CpuTarget


def skip_unless_possible(cpu: CpuTarget) -> None:
    """Skip the test if this machine's CPU cannot run the instructions of another."""
    try:
        Cpu.of(cpu)
    except CpuError as error:
        pytest.skip(str(error))
