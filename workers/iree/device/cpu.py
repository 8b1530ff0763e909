"""The CPU that graphs are compiled for and run on, as the operating system describes it. Imports nothing of IREE."""

import platform
from dataclasses import dataclass
from pathlib import Path

LLVM_NAMES = {
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "avx512_vnni": "avx512vnni",
    "avx_vnni": "avxvnni",
    "asimdhp": "fullfp16",
}
"""LLVM's names of features that Linux names otherwise."""
ROUNDING = frozenset({"avx2", "avx512bf16", "avx512f", "f16c", "fma", "fullfp16", "sse4a"})
"""Features by which kernels choose instructions that round sums differently. Those for integers are not among them:
their sums are exact."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The CPU that a local driver computes on."""

    machine: str
    features: frozenset[str]
    """LLVM's names."""

    @classmethod
    def of_host(cls) -> "Cpu":
        return cls(platform.machine().lower().replace("amd64", "x86_64"), _host_features())

    @property
    def digest(self) -> str:
        """CPUs of one digest run each other's compiled graphs."""
        return " ".join([self.machine, *sorted(self.features)])

    @property
    def kind(self) -> str:
        """CPUs of one kind compute the same tokens."""
        return " ".join([self.machine, *sorted(self.features & ROUNDING)])

    @property
    def pause(self) -> str:
        """LLVM's intrinsic by which a core tells that it only waits; empty where none is known."""
        return "llvm.x86.sse2.pause" if self.machine == "x86_64" else ""


def _host_features() -> frozenset[str]:
    """Return the features that `--iree-llvmcpu-target-cpu=host` will find, from /proc/cpuinfo."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip().lower() in ("flags", "features"):
                return frozenset(LLVM_NAMES.get(flag, flag) for flag in value.split())
    except OSError:
        pass  # not Linux: no instruction is chosen by a feature there
    return frozenset()
