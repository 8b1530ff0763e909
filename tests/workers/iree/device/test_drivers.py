"""The device that computes a model, and its number of threads, by default."""

import subprocess
import sys
from pathlib import Path

import pytest

from workers.checkpoints.architectures.tensors import parameter_count
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.device import drivers
from workers.iree.device.drivers import choose_device


@pytest.mark.parametrize(
    ("device", "threads", "planned", "spare", "chosen"),
    [
        ("", 0, 6, 0, ("local-sync", 1)),
        ("", 0, 6, -1, ("local-task", 6)),
        ("", 0, 1, -1, ("local-sync", 1)),
        ("", 1, 1, -1, ("local-sync", 1)),
        ("", 2, 2, 0, ("local-task", 2)),
        ("local-task", 0, 6, 0, ("local-task", 6)),
        ("local-task", 0, 1, 0, ("local-task", 1)),
        ("local-task", 1, 1, 0, ("local-task", 1)),
        ("local-sync", 0, 6, -1, ("local-sync", 1)),
        ("local-sync://0", 3, 3, -1, ("local-sync://0", 1)),
        ("cuda", 0, 6, 0, ("cuda", 6)),
    ],
)
def test_a_small_model_is_computed_by_the_thread_that_asks(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    threads: int,
    planned: int,
    spare: int,
    chosen: tuple[str, int],
) -> None:
    """Whatever cores it has; a larger model where it has one core alone."""
    config = ModelConfig.from_dir(checkpoint)
    monkeypatch.setattr(drivers, "SMALL_MODEL_PARAMETERS", parameter_count(config) + spare)
    assert choose_device(device, threads, config, planned) == chosen


def test_a_worker_says_what_computes_before_it_imports_what_does() -> None:
    code = "import sys, workers.iree.device.drivers; print(sorted({'iree', 'jax'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
