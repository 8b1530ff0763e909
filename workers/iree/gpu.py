"""GPUs as iree-compile's targets: its flags for each driver, and the architecture of the GPU that is here.

Imports nothing of IREE. What compiles without a device is seen by `python bench/gpu_check.py --compile-only`.
"""

import ctypes
from collections.abc import Mapping
from pathlib import Path

COMMON_FLAGS = ("--iree-input-type=stablehlo",)
"""Of every target."""
# Fused reductions with several results, as in sampling, cannot be distributed by the CUDA backend.
GPU_FLAGS = ("--iree-opt-level=O2", "--iree-dispatch-creation-enable-aggressive-fusion=false")
GPU_TARGETS: Mapping[str, str] = {
    "cuda": "--iree-cuda-target=",
    "hip": "--iree-rocm-target=",
    "vulkan": "--iree-vulkan-target=",
}
"""Drivers that graphs are compiled for, and the flag that names an architecture. Not metal: IREE 3.13 cannot lower the
search for the first of the highest logits to it."""
CUDA_TARGETS = (60, 70, 75, 80, 86, 89)
"""Compute capabilities that iree-compile 3.13 knows; it has no description of Hopper and refuses sm_90."""
AMD_NODES = "sys/class/kfd/kfd/topology/nodes"
"""Where the kernel lists AMD's GPUs (https://docs.kernel.org/gpu/amdgpu)."""


def gpu_flags(driver: str, architecture: str) -> tuple[str, ...]:
    """iree-compile's flags for one of `GPU_TARGETS`, whether there is such a device here or not.

    Without an `architecture` the compiler takes its default; for hip it has none.
    """
    return (*COMMON_FLAGS, *GPU_FLAGS, f"--iree-hal-target-device={driver}", *architecture_flags(driver, architecture))


def architecture_flags(driver: str, architecture: str) -> tuple[str, ...]:
    """The flag that names the architecture, where one is given."""
    return (GPU_TARGETS[driver] + architecture,) if architecture else ()


def gpu_architecture(driver: str, root: Path = Path("/")) -> str:
    """`sm_80`, `gfx942` and the like of the first GPU here; empty where nothing tells it."""
    if driver == "cuda":
        return _cuda_architecture()
    return _amd_architecture(root) if driver == "hip" else ""


def _cuda_architecture() -> str:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    major, minor, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return ""
    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
    if cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device):
        return ""
    if cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device):
        return ""
    return cuda_target(10 * major.value + minor.value)


def cuda_target(capability: int) -> str:
    """The newest target that the compiler knows and the GPU runs: its code is PTX, which newer GPUs take as well."""
    known = [target for target in CUDA_TARGETS if target <= capability]
    return f"sm_{known[-1]}" if known else ""


def _amd_architecture(root: Path) -> str:
    """From the first node that is a GPU; a CPU's version is 0."""
    for node in sorted((root / AMD_NODES).glob("*/properties"), key=lambda file: int(file.parent.name)):
        try:
            lines = node.read_text().splitlines()
        except OSError:
            continue
        fields = dict(line.split(maxsplit=1) for line in lines if " " in line)
        if version := int(fields.get("gfx_target_version", 0)):
            return amd_target(version)
    return ""


def amd_target(version: int) -> str:
    """90402 is gfx942, 90010 gfx90a: the last two numbers are one digit of 16 each."""
    major, rest = divmod(version, 10_000)
    return f"gfx{major}{rest // 100:x}{rest % 100:x}"
