"""Loads a checkpoint on both backends, as a worker does."""

from pathlib import Path
from typing import Literal

import pytest

from workers.errors import LoadRefused
from workers.process.loading import load
from workers.process.spec import WorkerSpec

Backend = Literal["iree", "mlx"]
BACKENDS: tuple[Backend, ...] = ("iree", "mlx")


def spec_of(path: Path, backend: Backend) -> WorkerSpec:
    """A worker with one slot on the CPU."""
    return WorkerSpec(
        "worker",
        "model",
        str(path),
        backend=backend,
        device="cpu" if backend == "mlx" else "",
        max_batch_size=1,
        context=48,
        cache_dir=str(path.parent / "cache"),
    )


def refusal(path: Path, backend: Backend) -> str:
    """The text with which a backend refuses the checkpoint."""
    with pytest.raises(LoadRefused) as refused:
        load(spec_of(path, backend), lambda *_: None).engine.close()
    return str(refused.value)
