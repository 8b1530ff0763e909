"""The device that single kernels run on."""

from pathlib import Path

import pytest

from tests.workers.iree.kernels.running import Run, runner_of
from workers.iree.device.device import Device


@pytest.fixture(scope="module")
def run(cache_dir: Path) -> Run:
    return runner_of(cache_dir, Device("local-sync", 1))
