"""GPUs as targets of iree-compile: its flags for each driver, from the runtime's description of a device.

Imports nothing of IREE. What compiles without a device is seen by `python bench/gpu_check.py --compile-only`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

COMMON_FLAGS = ("--iree-input-type=stablehlo",)
"""Flags of every target."""
# Fused reductions with several results, as in sampling, cannot be distributed by the CUDA backend.
GPU_FLAGS = ("--iree-opt-level=O2", "--iree-dispatch-creation-enable-aggressive-fusion=false")
GPU_TARGETS: Mapping[str, str] = {
    "cuda": "--iree-cuda-target=",
    "hip": "--iree-rocm-target=",
    "vulkan": "--iree-vulkan-target=",
}
"""Drivers that graphs are compiled for, and the flag that names an architecture. Not metal: there MLX serves."""
NEEDS: Mapping[str, str] = {
    "cuda": "needs an NVIDIA GPU and its driver (libcuda)",
    "hip": "needs an AMD GPU and ROCm (libamdhip64)",
    "vulkan": "needs the Vulkan loader (libvulkan.so.1) and a driver, such as mesa-vulkan-drivers",
}
"""Requirements of IREE's drivers for finding a device."""
CUDA_TARGETS = (60, 70, 75, 80, 86, 89)
"""Compute capabilities that iree-compile 3.13 knows; it has no description of Hopper and refuses sm_90."""
VULKAN_TARGETS: Mapping[int, str] = {0x10DE: "pascal", 0x1002: "rdna1"}
"""By a vendor's PCI number (NVIDIA, AMD): the oldest GPUs with 16-bit numbers that the compiler knows. For newer
ones it takes cooperative matrices, and fails on prompts in float16."""
VULKAN_HALVES = ("storageBuffer16BitAccess", "shaderFloat16")
"""Features of Vulkan that float16 needs."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its driver describes it."""

    driver: str
    """One of `GPU_TARGETS`."""
    facts: Mapping[str, str]
    """The driver's properties by their names; there may be none."""

    @classmethod
    def of(cls, driver: str, text: str) -> "Gpu":
        """Parse `HalDriver.dump_device_info`: lines of `name: value`, where a value may be a list of `name=value`."""
        facts: dict[str, str] = {}
        for line in text.splitlines():
            name, _, value = line.lstrip("- ").partition(": ")
            facts[name] = value.strip()
            facts |= dict(re.findall(r"(\w+)=(\S+)", value))
        return cls(driver, facts)

    @property
    def architecture(self) -> str:
        """The name that iree-compile has for it, such as `sm_80` or `gfx942`; empty for iree-compile's default."""
        if self.driver == "cuda":
            major, _, minor = self.facts.get("gpu-compute-capability", "0.0").partition(".")
            return cuda_target(10 * int(major) + int(minor))
        if self.driver == "hip":
            return self.facts.get("gpu-arch-name", "").partition(":")[0]
        return self._vulkan_target()

    def _vulkan_target(self) -> str:
        """Return the target for Vulkan. The default, without 16-bit types and subgroup operations, runs on every
        device."""
        if not all(self.facts.get(feature) == "yes" for feature in VULKAN_HALVES):
            return ""
        return VULKAN_TARGETS.get(int(self.facts.get("vendor_id", "0"), 16), "")

    def lacks(self, dtype: str) -> str:
        """Return why a model of this type cannot run on this GPU; empty if it can."""
        if self.driver != "vulkan" or dtype == "float32":
            return ""
        if dtype == "bfloat16":
            return "IREE compiles no bfloat16 for Vulkan"
        if missing := [feature for feature in VULKAN_HALVES if self.facts.get(feature) != "yes"]:
            return f"the device has no {' and no '.join(missing)}"
        return "" if self.architecture else "IREE has no description of this GPU with 16-bit numbers"

    @property
    def flags(self) -> tuple[str, ...]:
        """iree-compile's flags."""
        return gpu_flags(self.driver, self.architecture)


def gpu_flags(driver: str, architecture: str) -> tuple[str, ...]:
    """Return iree-compile's flags for one of `GPU_TARGETS`, whether there is such a device or not.

    Without an `architecture` the compiler uses its default; for hip it has none.
    """
    named = (GPU_TARGETS[driver] + architecture,) if architecture else ()
    return (*COMMON_FLAGS, *GPU_FLAGS, f"--iree-hal-target-device={driver}", *named)


def cuda_target(capability: int) -> str:
    """Return the newest target that the compiler knows and the GPU runs: its code is PTX, which newer GPUs run too."""
    known = [target for target in CUDA_TARGETS if target <= capability]
    return f"sm_{known[-1]}" if known else ""
