"""Compiling ahead: everything, and what is there is not compiled again."""

from pathlib import Path

import pytest

from tests.compiling import compiling_here
from tests.workers.iree.conftest import CONTEXT
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.build.ahead_of_time import compile_ahead
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.cpu import Cpu, CpuError
from workers.iree.runner import IreeRunner
from workers.load_options import LoadOptions
from workers.precision import CpuTarget


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


def test_rare_graphs_can_be_left_out(
    shared_runner: IreeRunner, checkpoint: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = shared_runner.graphs.ready
    plan = shared_runner.graphs.builder.plan
    kinds = (plan.required(), plan.optional())
    required, optional = ([group for group in kind if ready >= set(group)] for kind in kinds)
    monkeypatch.setattr(GraphPlan, "required", lambda plan: required)
    monkeypatch.setattr(GraphPlan, "optional", lambda plan: optional)
    options = LoadOptions(device="local-task", dtype="float32", slots=8, context=CONTEXT, cache_dir=cache_dir)
    config = ModelConfig.from_dir(checkpoint)
    built = list(compile_ahead(checkpoint, config, options, lambda phase, done, total: None, rare=False))
    assert [module.group for module in built] == [*required, *optional]


def test_graphs_are_compiled_for_a_cpu_that_cannot_run_here(
    checkpoint: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target: CpuTarget = "avx2" if Cpu.of_host().machine == "aarch64" else "neon"
    monkeypatch.setattr(GraphPlan, "everything", lambda plan: [("head_1",)])
    options = LoadOptions(device="local-sync", slots=2, context=CONTEXT, cache_dir=cache_dir, cpu=target)
    config = ModelConfig.from_dir(checkpoint)
    with compiling_here():
        (built,) = compile_ahead(checkpoint, config, options, lambda phase, done, total: None)
    assert built.file.exists()
    with pytest.raises(CpuError, match=f"cpu: '{target}' is for "):
        IreeRunner.load(checkpoint, config, options, lambda phase, done, total: None)
