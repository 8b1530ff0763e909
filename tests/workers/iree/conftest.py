"""What the tests of the IREE backend start from. Compiling is most of their time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

import pytest

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
pytest.importorskip("jax", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")

from tests.checkpoints import make_checkpoint
from tests.compiling import compiling_here
from workers.checkpoints.checkpoint import ModelConfig
from workers.host.cores import usable_cores
from workers.iree.runner import IreeRunner, Progress
from workers.precision import Dtype, Quantize

CONTEXT = 96
"""Chunks of 32, 64 and 96: prompts of several chunks, and of chunks that pad beyond the context."""


class Options(TypedDict, total=False):
    """What a test may ask of `IreeRunner.load`."""

    device: str
    dtype: Dtype
    quantize: Quantize
    slots: int
    context: int
    cache_dir: Path
    threads: int
    progress: Progress
    kv_bytes: int
    background: bool


class Load(Protocol):
    def __call__(self, path: Path = ..., **changes: Unpack[Options]) -> IreeRunner: ...


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"), "llama")


@pytest.fixture(scope="session")
def load(cache_dir: Path, checkpoint: Path) -> Load:
    def load(path: Path = checkpoint, **changes: Unpack[Options]) -> IreeRunner:
        defaults: Options = {
            "device": "local-task",
            "dtype": "float32",
            "slots": 8,
            "context": CONTEXT,
            "cache_dir": cache_dir,
            "threads": 0,
            "progress": lambda phase, done, total: None,
            "background": False,
        }
        options: Options = {**defaults, **changes}
        with compiling_here():
            return IreeRunner.load(path, ModelConfig.from_dir(path), **options)

    return load


def fetch_all(runner: IreeRunner, *kinds: str) -> None:
    """Every step's graph and those for the draws of all slots, or all of some kinds: what a runner comes to."""
    slots = runner.capabilities.slots
    kinds = kinds or ("decode", "prefill", "head", "score", f"edit_{slots}", f"report_{slots}")
    missing = [group for group in runner.graphs.builder.plan.everything() if not runner.graphs.ready >= set(group)]
    wanted = [group for group in missing if group[0].startswith(kinds)]
    with compiling_here():
        runner.graphs.open(wanted, usable_cores(), lambda phase, done, total: None)


@pytest.fixture(scope="session")
def shared_runner(load: Load) -> Iterator[IreeRunner]:
    runner = load()
    fetch_all(runner)
    yield runner
    runner.close()


@pytest.fixture
def runner(shared_runner: IreeRunner) -> IreeRunner:
    """A runner in float32 with empty slots."""
    for slot in range(shared_runner.capabilities.slots):
        shared_runner.reset(slot)
    window = shared_runner._kv.window
    assert window is not None
    window[...] = 0  # what a test wrote where no row is, too, which no reset clears
    return shared_runner
