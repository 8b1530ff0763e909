"""Graphs that are compiled for a GPU elsewhere: their targets, and that a worker beside the GPU finds them."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
pytest.importorskip("jax", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")

from bench.gpu import compile_only
from bench.gpu.compile_only import check_compiles, target_of
from bench.gpu.stages import StageSizes, StageSpec, checkpoint
from bench.gpu_check import arguments
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.build.compile_client import Builder
from workers.iree.build.recipe import Recipe
from workers.iree.device.device import Device
from workers.iree.device.gpu import Gpu
from workers.load_options import LoadOptions


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("cuda", ("cuda", "")),
        ("cuda:sm_80", ("cuda", "sm_80")),
        ("cuda:sm_90", ("cuda", "sm_89")),
        ("hip:gfx942", ("hip", "gfx942")),
        ("vulkan:rdna1", ("vulkan", "rdna1")),
    ],
)
def test_a_target_is_a_driver_with_or_without_an_architecture(text: str, target: tuple[str, str]) -> None:
    assert target_of(text) == target
    assert arguments(["--compile-only", text]).compile_only == [target]


@pytest.mark.parametrize("text", ["", "metal", "cuda:h100", "cuda:sm_35", "cuda:sm_90a"])
def test_other_targets_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=f"'{text}' (is not one of cuda, hip, vulkan|names no GPU)"):
        target_of(text)
    with pytest.raises(SystemExit):
        arguments(["--compile-only", text])
    assert f"argument --compile-only: '{text}' " in capsys.readouterr().err


@dataclass
class _H100:
    """An opened device, as far as a recipe asks."""

    uri: str = "cuda"
    local: bool = False
    threads: int = 1

    def check(self, dtype: str) -> None:
        pass

    def compile_flags(self) -> tuple[str, ...]:
        return Gpu.of("cuda", "- gpu-compute-capability: 9.0").flags

    def compile_target(self) -> str:
        return sys.platform


def test_a_run_on_the_gpu_finds_what_was_compiled_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built: dict[str, list[str]] = {}

    def build_all(builder: Builder, groups: list[Any], parallel: int) -> list[None]:
        built[builder.recipe.model] = [builder.key(group) for group in groups]
        return [None] * len(groups)

    monkeypatch.setattr(compile_only, "build_all", build_all)
    sizes = StageSizes(slots=2, context=64)
    gate = StageSpec("gate", "cuda", str(tmp_path), "llama", "float32", sizes)
    engine = StageSpec("engine", "cuda", str(tmp_path), "tiny", "bfloat16", sizes)
    others = [StageSpec(stage, "cuda", str(tmp_path), "tiny", sizes=sizes) for stage in ("doctor", "memory", "jax")]
    assert check_compiles([("cuda", "sm_89")], {"cuda": [*others, gate, engine]})
    printed = capsys.readouterr().out
    assert "PASS compile cuda sm_89 llama float32: " in printed
    assert "PASS compile cuda sm_89 tiny bfloat16: " in printed
    for spec, required in ((gate, False), (engine, True)):
        path = checkpoint(spec)
        options = LoadOptions(device="cuda", dtype=spec.dtype, slots=2, context=64, cache_dir=tmp_path)
        recipe = Recipe.of(path, ModelConfig.from_dir(path), cast(Device, _H100()), options)
        there = Builder(recipe)
        groups = there.plan.required() if required else there.plan.everything()
        assert built[str(path)] == [there.key(group) for group in groups]


def test_a_graph_that_does_not_compile_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build_all(builder: Builder, groups: list[Any], parallel: int) -> list[None]:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(compile_only, "build_all", build_all)
    assert not check_compiles([("cuda", "")], {"cuda": []})
    assert "FAIL compile cuda sm_80 bfloat16: RuntimeError: no such instruction" in capsys.readouterr().out
