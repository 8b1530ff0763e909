"""Fixtures that load small checkpoints on MLX."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workers.checkpoints.checkpoint import ModelConfig
from workers.load_options import LoadOptions, Progress

collect_ignore_glob: list[str] = []
try:
    from workers.mlx.runner import MlxRunner
except ImportError:
    # All but test_installed.py, which is skipped with the reason.
    collect_ignore_glob += ["test_[!i]*.py", "alone/*.py", "hybrid/*.py", "lora/*.py", "windows/*.py", "every/*.py"]

Load = Callable[..., "MlxRunner"]


def quiet(phase: str, done: int, total: int) -> None:
    """Progress that no test looks at."""


def load_runner(path: Path, progress: Progress = quiet, **options: Any) -> "MlxRunner":
    """A runner on the CPU, where tokens are exact, with small defaults."""
    chosen = replace(LoadOptions(device="cpu", slots=4, context=256, cache_dir=path), **options)
    return MlxRunner.load(path, ModelConfig.from_dir(path), chosen, progress)


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
