"""Compiled graphs and packed weights are shared by all tests of the session: compiling is most of their time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton[iree]'")
pytest.importorskip("jax", reason="the IREE backend is not installed: pip install 'baton[iree]'")

from tests.checkpoints import make_checkpoint
from workers.checkpoint import ModelConfig
from workers.iree.runner import IreeRunner

CONTEXT = 96
"""Chunks of 32 and 96: prompts of several chunks, and of chunks that pad beyond the context."""

Load = Callable[..., IreeRunner]


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"), "llama")


@pytest.fixture(scope="session")
def load(cache_dir: Path, checkpoint: Path) -> Load:
    def load(path: Path = checkpoint, **changes: Any) -> IreeRunner:
        options = {
            "device": "local-task",
            "dtype": "float32",
            "slots": 8,
            "context": CONTEXT,
            "cache_dir": cache_dir,
            "threads": 0,
            "progress": lambda phase, done, total: None,
        }
        return IreeRunner.load(path, ModelConfig.from_dir(path), **(options | changes))

    return load


@pytest.fixture(scope="session")
def shared_runner(load: Load) -> Iterator[IreeRunner]:
    runner = load()
    yield runner
    runner.close()


@pytest.fixture
def runner(shared_runner: IreeRunner) -> IreeRunner:
    """A runner in float32 with empty slots."""
    for slot in range(shared_runner.capabilities.slots):
        shared_runner.reset(slot)
    return shared_runner
