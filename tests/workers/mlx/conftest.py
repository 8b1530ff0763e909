"""Fixtures that load small checkpoints on MLX."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workers.checkpoints.checkpoint import ModelConfig

collect_ignore_glob: list[str] = []
try:
    from workers.mlx.runner import MlxRunner
except ImportError:
    collect_ignore_glob.append("test_[!i]*.py")  # all but test_installed.py, which is skipped with the reason

Load = Callable[..., "MlxRunner"]


def load_runner(path: Path, **options: Any) -> "MlxRunner":
    """A runner on the CPU, where tokens are exact, with small defaults."""
    chosen: dict[str, Any] = {
        "device": "cpu",
        "dtype": "auto",
        "slots": 4,
        "context": 256,
        "cache_dir": path,
        "threads": 0,
        "progress": lambda phase, done, total: None,
    }
    return MlxRunner.load(path, ModelConfig.from_dir(path), **(chosen | options))


@pytest.fixture
def load() -> Iterator[Load]:
    """A function `load(path, **options)`; its runners are closed after the test."""
    runners: list[MlxRunner] = []

    def make(path: Path, **options: Any) -> "MlxRunner":
        runners.append(load_runner(path, **options))
        return runners[-1]

    yield make
    for runner in runners:
        runner.close()
