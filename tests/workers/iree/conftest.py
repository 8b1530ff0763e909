"""Fixtures for the tests of the IREE backend. Compiling is most of their time."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
pytest.importorskip("jax", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")

from tests.checkpoints import make_checkpoint
from tests.compiling import compiling_here
from workers.checkpoints.checkpoint import ModelConfig
from workers.host.topology import usable_cores
from workers.iree.build.compile_client import Building
from workers.iree.runner import IreeRunner
from workers.load_options import LoadOptions, Progress

CONTEXT = 96
"""Chunks of 32, 64 and 96: prompts of several chunks, and of chunks that pad beyond the context."""


class Load(Protocol):
    """`IreeRunner.load` with small defaults; `changes` are fields of `LoadOptions`."""

    def __call__(
        self, path: Path = ..., *, progress: Progress = ..., background: bool = ..., mtp: bool = ..., **changes: Any
    ) -> IreeRunner: ...


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"), "llama")


@pytest.fixture(scope="session")
def load(cache_dir: Path, checkpoint: Path) -> Load:
    defaults = LoadOptions(device="local-task", dtype="float32", slots=8, context=CONTEXT, cache_dir=cache_dir)

    def load(
        path: Path = checkpoint,
        *,
        progress: Progress = lambda phase, done, total: None,
        background: bool = False,
        mtp: bool = False,
        **changes: Any,
    ) -> IreeRunner:
        options, config = replace(defaults, **changes), ModelConfig.from_dir(path)
        config = config.with_mtp() if mtp else config
        with compiling_here():
            return IreeRunner.load(path, config, options, progress, background=background)

    return load


def fetch_all(runner: IreeRunner, *kinds: str) -> None:
    """Wait for the graphs of every step and those that sample for all slots, or for those of some kinds or names."""
    slots = runner.capabilities.slots
    kinds = kinds or ("decode", "prefill", "head", "score", f"edit_{slots}", f"report_{slots}")
    missing = [group for group in runner.graphs.builder.plan.everything() if not runner.graphs.ready >= set(group)]
    more = f"decode_{runner.capabilities.draft_rows}"  # which only drafts of a full batch need
    wanted = [
        group
        for group in missing
        if any(group[0] == kind or group[0].startswith(f"{kind}_") for kind in kinds)
        and (group[0] != more or more in kinds)
    ]
    with compiling_here(), Building(runner.graphs.builder, wanted, usable_cores()) as building:
        runner.graphs.open(building, wanted, lambda phase, done, total: None)


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
    window = shared_runner._buffers.kv[0].window
    assert window is not None
    window[...] = 0  # what a test wrote where no row is, too, which no reset clears
    return shared_runner
