"""Other devices than the CPU, without one: their flags, and that a step's graphs compile for each."""

from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint
from workers.iree.gpu import AMD_NODES, GPU_TARGETS, amd_target, cuda_target, gpu_architecture, gpu_flags
from workers.iree.recipe import Recipe


@pytest.mark.parametrize(
    ("capability", "target"), [(90, "sm_89"), (89, "sm_89"), (87, "sm_86"), (60, "sm_60"), (50, "")]
)
def test_a_gpu_newer_than_the_compiler_gets_the_newest_that_it_knows(capability: int, target: str) -> None:
    assert cuda_target(capability) == target


@pytest.mark.parametrize(
    ("version", "target"), [(90402, "gfx942"), (90010, "gfx90a"), (100302, "gfx1032"), (110001, "gfx1101")]
)
def test_the_kernels_numbers_of_amds_gpus(version: int, target: str) -> None:
    assert amd_target(version) == target


def test_the_first_node_that_is_a_gpu_counts(tmp_path: Path) -> None:
    assert gpu_architecture("hip", tmp_path) == ""
    for number, version in ((0, 0), (10, 90010), (2, 90402)):
        node = tmp_path / AMD_NODES / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\nunique_id\n")
    assert gpu_architecture("hip", tmp_path) == "gfx942"
    assert gpu_architecture("vulkan", tmp_path) == ""


@pytest.mark.parametrize(("driver", "architecture"), [("cuda", "sm_80"), ("hip", "gfx942"), ("vulkan", "")])
def test_a_decode_step_compiles(tmp_path: Path, cache_dir: Path, driver: str, architecture: str) -> None:
    """All graphs, also those that draw: `python bench/gpu_check.py --compile-only`."""
    path, flags = make_checkpoint(tmp_path / "model", layers=1), gpu_flags(driver, architecture)
    recipe = Recipe(str(path), "auto", False, 2, 32, flags, driver, str(cache_dir))
    assert recipe.compiler().compile(recipe.plan().module(("decode_2",))).stat().st_size > 0


def test_every_target_is_compiled_for_above() -> None:
    assert set(GPU_TARGETS) == {"cuda", "hip", "vulkan"}
