"""Compiling ahead: everything, and what is there is not compiled again."""

from pathlib import Path

import pytest

from tests.workers.iree.conftest import CONTEXT
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.build.ahead_of_time import compile_ahead
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.runner import IreeRunner
from workers.load_options import LoadOptions


def test_what_a_runner_has_is_found_and_the_rest_compiled(
    shared_runner: IreeRunner, checkpoint: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = shared_runner.graphs.ready
    groups = [group for group in shared_runner.graphs.builder.plan.everything() if ready >= set(group)]
    missing = ("report_1",)  # one of several: compiling takes seconds
    monkeypatch.setattr(GraphPlan, "everything", lambda plan: [*groups, missing])
    phases: list[str] = []
    built = list(
        compile_ahead(
            checkpoint,
            ModelConfig.from_dir(checkpoint),
            LoadOptions(device="local-task", dtype="float32", slots=8, context=CONTEXT, cache_dir=cache_dir),
            lambda phase, done, total: phases.append(f"{phase} {done}/{total}"),
        )
    )
    assert sorted(module.group for module in built) == sorted([*groups, missing])
    assert all(module.seconds is None for module in built if module.group != missing)
    assert all(module.file.exists() for module in built)
    assert phases[-1] == f"compile graphs {len(built)}/{len(built)}"
