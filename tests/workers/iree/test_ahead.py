"""Compiling ahead: everything, and what is there is not compiled again."""

from pathlib import Path

from tests.workers.iree.conftest import CONTEXT
from workers.checkpoint import ModelConfig
from workers.iree.ahead import compile_ahead
from workers.iree.runner import IreeRunner


def test_what_a_runner_has_is_found(shared_runner: IreeRunner, checkpoint: Path, cache_dir: Path) -> None:
    phases: list[str] = []
    built = list(
        compile_ahead(
            checkpoint,
            ModelConfig.from_dir(checkpoint),
            device="",
            dtype="float32",
            slots=8,
            context=CONTEXT,
            cache_dir=cache_dir,
            threads=0,
            progress=lambda phase, done, total: phases.append(f"{phase} {done}/{total}"),
        )
    )
    ready = shared_runner.graphs.ready
    assert {name for module in built for name in module.group} > ready
    assert all(module.seconds is None for module in built if ready >= set(module.group))
    assert all(module.file.exists() for module in built)
    assert phases[-1] == f"compile graphs {len(built)}/{len(built)}"
