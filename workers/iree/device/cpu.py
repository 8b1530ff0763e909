"""The CPU that graphs are compiled for: the one they run on, as the operating system describes it, or a lesser one.
Imports nothing of IREE."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.errors import LoadRefused
from workers.precision import CpuTarget

LLVM_NAMES = {
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "avx512_vnni": "avx512vnni",
    "avx_vnni": "avxvnni",
    "bmi1": "bmi",
    "asimdhp": "fullfp16",
}
"""LLVM's names of features that Linux names otherwise."""
ROUNDING = frozenset({"avx2", "avx512bf16", "avx512f", "f16c", "fma", "fullfp16", "sse4a"})
"""Features by which kernels choose instructions that round sums differently. Those for integers are not among them:
their sums are exact."""


_AVX2 = frozenset({"avx", "avx2", "bmi", "bmi2", "f16c", "fma"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
TARGETS: Mapping[CpuTarget, tuple[str, frozenset[str]]] = {
    "avx2": ("x86-64-v3", _AVX2),
    "avx-vnni": ("x86-64-v3", _AVX2 | {"avxvnni"}),
    "avx512": ("x86-64-v4", _AVX512),
    "avx512-vnni": ("x86-64-v4", _AVX512 | {"avx512vnni"}),
}
"""LLVM's name of the CPU and the features that kernels may use, for every target but `host`."""


class CpuError(LoadRefused):
    """Raised for a target that this machine's CPU cannot run; the text names what it lacks."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The CPU that a local driver computes on."""

    machine: str
    features: frozenset[str]
    """LLVM's names."""
    target: CpuTarget = "host"

    @classmethod
    def of_host(cls) -> "Cpu":
        return cls(platform.machine().lower().replace("amd64", "x86_64"), _host_features())

    @classmethod
    def of(cls, target: CpuTarget) -> "Cpu":
        """Return this machine's CPU, restricted to the instructions of a target. Raises `CpuError`."""
        host = cls.of_host()
        if target == "host":
            return host
        _, features = TARGETS[target]
        if not host.features:
            raise CpuError(f"cpu: {target!r} cannot be checked: this system does not list its CPU's instructions")
        if lacking := sorted(features - host.features):
            raise CpuError(f"cpu: {target!r} needs {', '.join(lacking)}, which this machine's CPU does not have")
        return cls(host.machine, features, target)

    @property
    def flags(self) -> tuple[str, ...]:
        """iree-compile's flags for this CPU."""
        if self.target == "host":
            return ("--iree-llvmcpu-target-cpu=host",)
        name, features = TARGETS[self.target]
        return (
            f"--iree-llvmcpu-target-cpu={name}",
            f"--iree-llvmcpu-target-cpu-features={','.join(f'+{feature}' for feature in sorted(features))}",
        )

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
