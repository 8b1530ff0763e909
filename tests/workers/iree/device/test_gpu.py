"""Other devices than the CPU, without one: what their drivers say, their flags, and that graphs compile for each."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import make_checkpoint
from workers.iree.build.recipe import Recipe
from workers.iree.device.gpu import GPU_TARGETS, NEEDS, VULKAN_HALVES, VULKAN_TARGETS, Gpu, cuda_target, gpu_flags

CUDA = """
- gpu-compute-capability: 9.0
- driver-max-cuda-version: 12.4

- launch-max-block-dims: (1024, 1024, 64)
"""
HIP = """
- amdhip64_dylib_path: /opt/rocm/lib/libamdhip64.so
- gpu-compute-capability: 9.4
- gpu-arch-name: gfx942:sramecc+:xnack-
"""
VULKAN = """name: {name}
vendor_id: {vendor:#x}
features: bufferDeviceAddress=yes storageBuffer16BitAccess={halves} shaderFloat16={halves} cooperativeMatrix=yes
memory_heaps: 1
  [0] size=2147483648 flags=0x00000001
"""


def vulkan(vendor: int, halves: str = "yes") -> Gpu:
    return Gpu.of("vulkan", VULKAN.format(name="some", vendor=vendor, halves=halves))


@pytest.mark.parametrize(
    ("capability", "target"), [(90, "sm_89"), (89, "sm_89"), (87, "sm_86"), (60, "sm_60"), (50, "")]
)
def test_a_gpu_newer_than_the_compiler_gets_the_newest_that_it_knows(capability: int, target: str) -> None:
    assert cuda_target(capability) == target


@pytest.mark.parametrize(
    ("gpu", "architecture"),
    [
        (Gpu.of("cuda", CUDA), "sm_89"),
        (Gpu.of("cuda", ""), ""),
        (Gpu.of("hip", HIP), "gfx942"),
        (Gpu.of("hip", ""), ""),
        (vulkan(0x10DE), "pascal"),
        (vulkan(0x1002), "rdna1"),
        (vulkan(0x10DE, "no"), ""),
        (vulkan(0x8086), ""),
        (Gpu.of("vulkan", ""), ""),
    ],
)
def test_the_architecture_is_what_the_driver_says(gpu: Gpu, architecture: str) -> None:
    assert gpu.architecture == architecture
    assert gpu.flags == gpu_flags(gpu.driver, architecture)
    assert f"--iree-hal-target-device={gpu.driver}" in gpu.flags
    assert (f"{GPU_TARGETS[gpu.driver]}{architecture}" in gpu.flags) == bool(architecture)
    assert not any("llvmcpu" in flag for flag in gpu.flags)


@pytest.mark.parametrize("gpu", [Gpu.of("cuda", CUDA), Gpu.of("hip", HIP)], ids=["cuda", "hip"])
def test_cuda_and_hip_take_every_number_type(gpu: Gpu) -> None:
    assert not any(gpu.lacks(dtype) for dtype in ("float32", "float16", "bfloat16"))


def test_vulkan_takes_what_the_device_and_the_compiler_can() -> None:
    assert not any(vulkan(vendor).lacks("float16") for vendor in VULKAN_TARGETS)
    assert vulkan(0x10DE).lacks("bfloat16") == "IREE compiles no bfloat16 for Vulkan"
    assert vulkan(0x10DE, "no").lacks("float16") == f"the device has no {' and no '.join(VULKAN_HALVES)}"
    assert vulkan(0x8086).lacks("float16") == "IREE has no description of this GPU with 16-bit numbers"
    assert not vulkan(0x8086, "no").lacks("float32")


def test_drivers_that_graphs_are_compiled_for() -> None:
    assert set(GPU_TARGETS) == set(NEEDS) == {"cuda", "hip", "vulkan"}


@pytest.mark.parametrize(
    ("driver", "architecture", "dtype"),
    [("cuda", "sm_80", "bfloat16"), ("hip", "gfx942", "bfloat16"), ("vulkan", "", "float32")],
)
def test_a_decode_step_compiles(tmp_path: Path, cache_dir: Path, driver: str, architecture: str, dtype: Any) -> None:
    """All graphs, including those that sample: `python bench/gpu_check.py --compile-only`."""
    path, flags = make_checkpoint(tmp_path / "model", layers=1), gpu_flags(driver, architecture)
    recipe = Recipe(str(path), dtype, False, 2, 32, flags, driver, str(cache_dir))
    assert recipe.compiler().compile(recipe.plan().module(("decode_2",))).stat().st_size > 0


def test_a_prompt_in_float16_compiles_for_vulkan(tmp_path: Path, cache_dir: Path) -> None:
    """IREE made no SPIR-V of it with gathers fused into reductions, nor with cooperative matrices."""
    path, flags = make_checkpoint(tmp_path / "model", layers=1), gpu_flags("vulkan", VULKAN_TARGETS[0x10DE])
    recipe = Recipe(str(path), "float16", False, 2, 32, flags, "vulkan", str(cache_dir))
    assert recipe.compiler().compile(recipe.plan().module(("prefill_32", "head_1"))).stat().st_size > 0


@pytest.mark.slow
def test_products_by_matrix_instructions_are_stored_in_order(tmp_path: Path) -> None:
    """On an H100 others had results in each other's places, padding among them: attention with groups of 7 was NaN."""
    path = make_checkpoint(tmp_path / "model", hidden=448, heads=7, kv_heads=1, head_dim=64, layers=1)
    chosen = tmp_path / "chosen"
    flags = (*gpu_flags("cuda", "sm_80"), f"--iree-hal-dump-executable-configurations-to={chosen}")
    recipe = Recipe(str(path), "bfloat16", False, 2, 128, flags, "cuda", str(tmp_path / "cache"))
    recipe.compiler().compile(recipe.plan().module(("decode_2", "prefill_128")))
    products = [line for file in chosen.iterdir() for line in file.read_text().splitlines() if "mma_kind" in line]
    assert len(products) >= 8  # five of a layer and the head, for decode and prefill, those that are equal once
    for line in products:
        rows, columns, out = (
            dims.split(", ") for dims in re.findall(r"affine_map<\([^)]*\) -> \(([^)]*)\)>", line)[:3]
        )
        assert out[-1] in columns
        assert out[-1] not in rows
