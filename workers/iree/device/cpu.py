"""The CPU that graphs are compiled for: the one they run on, as the operating system describes it, or another one.
Imports nothing of IREE."""

import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.errors import LoadRefused
from workers.precision import CpuTarget

LLVM_NAMES = {
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "avx512_vnni": "avx512vnni",
    "avx_vnni": "avxvnni",
    "bmi1": "bmi",
    # AArch64, by Linux and by macOS
    "asimd": "neon",
    "asimddp": "dotprod",
    "asimdhp": "fullfp16",
    "atomics": "lse",
    "FEAT_BF16": "bf16",
    "FEAT_DotProd": "dotprod",
    "FEAT_FP16": "fullfp16",
    "FEAT_I8MM": "i8mm",
    "FEAT_LSE": "lse",
}
"""LLVM's names of features that operating systems name otherwise."""
ROUNDING = frozenset({"avx2", "avx512bf16", "avx512f", "bf16", "f16c", "fma", "fullfp16", "sse4a"})
"""Features by which kernels choose instructions that round sums differently. Those for integers are not among them:
their sums are exact."""
AARCH64 = "aarch64"
MACHINES = {"amd64": "x86_64", "arm64": AARCH64}
"""LLVM's names of architectures that operating systems name otherwise."""
AARCH64_FEATURES = frozenset({"neon", "lse", "fullfp16", "dotprod", "i8mm", "bf16"})
"""Features of AArch64 that graphs use. LLVM does not know every such CPU by name: its `host` would leave some out."""


@dataclass(frozen=True, slots=True)
class Instructions:
    """The instructions of a kind of CPU."""

    machine: str
    """The architecture."""
    name: str
    """LLVM's name of the CPU."""
    features: frozenset[str]
    """LLVM's names of the features that kernels may use."""


_AVX2 = frozenset({"avx", "avx2", "bmi", "bmi2", "f16c", "fma"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_DOTPROD = frozenset({"neon", "lse", "dotprod"})
TARGETS: Mapping[CpuTarget, Instructions] = {
    "avx2": Instructions("x86_64", "x86-64-v3", _AVX2),
    "avx-vnni": Instructions("x86_64", "x86-64-v3", _AVX2 | {"avxvnni"}),
    "avx512": Instructions("x86_64", "x86-64-v4", _AVX512),
    "avx512-vnni": Instructions("x86_64", "x86-64-v4", _AVX512 | {"avx512vnni"}),
    "neon": Instructions(AARCH64, "generic", frozenset({"neon"})),
    "neon-dotprod": Instructions(AARCH64, "generic", _DOTPROD),
    "neon-i8mm": Instructions(AARCH64, "generic", _DOTPROD | {"i8mm", "bf16"}),
}
"""Every target but `host`."""


class CpuError(LoadRefused):
    """Raised for a target that this machine's CPU cannot run; the text names what it lacks."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """A CPU that a local driver computes on."""

    machine: str
    """The architecture, by LLVM's name."""
    features: frozenset[str]
    """LLVM's names."""
    target: CpuTarget = "host"

    @classmethod
    def of_host(cls) -> "Cpu":
        machine = platform.machine().lower()
        machine = MACHINES.get(machine, machine)
        features = _host_features()
        # Every CPU of this architecture has them, whatever the system says.
        return cls(machine, features | {"neon"} if machine == AARCH64 else features)

    @classmethod
    def named(cls, target: CpuTarget) -> "Cpu":
        """Return the CPU of a target, to compile for: this machine's may lack its instructions, and be of another
        architecture."""
        if target == "host":
            return cls.of_host()
        return cls(TARGETS[target].machine, TARGETS[target].features, target)

    @classmethod
    def of(cls, target: CpuTarget) -> "Cpu":
        """Return this machine's CPU, restricted to the instructions of a target. Raises `CpuError`."""
        host, cpu = cls.of_host(), cls.named(target)
        if target == "host":
            return host
        if host.machine != cpu.machine:
            others = ", ".join(name for name, each in TARGETS.items() if each.machine == host.machine)
            choice = f", or take one of {others}" if others else ""
            raise CpuError(
                f"cpu: {target!r} is for {cpu.machine}, and this machine's CPU is {host.machine}: leave the setting "
                f"`cpu` out{choice}. `baton compile` compiles for other machines"
            )
        if not host.features:
            raise CpuError(f"cpu: {target!r} cannot be checked: this system does not list its CPU's instructions")
        if lacking := sorted(cpu.features - host.features):
            raise CpuError(f"cpu: {target!r} needs {', '.join(lacking)}, which this machine's CPU does not have")
        return cpu

    @property
    def flags(self) -> tuple[str, ...]:
        """iree-compile's flags for this CPU."""
        if self.target == "host":
            if self.machine != AARCH64:
                return ("--iree-llvmcpu-target-cpu=host",)
            return _flags(AARCH64, "generic", self.features & AARCH64_FEATURES)
        kind = TARGETS[self.target]
        return _flags(kind.machine, kind.name, kind.features)

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
        return {"x86_64": "llvm.x86.sse2.pause", AARCH64: "llvm.aarch64.isb"}.get(self.machine, "")


def _flags(machine: str, name: str, features: Iterable[str]) -> tuple[str, ...]:
    """The modules have IREE's own format, so that all operating systems load those that are compiled for Linux."""
    triple = (f"--iree-llvmcpu-target-triple={AARCH64}-unknown-linux-gnu",) if machine == AARCH64 else ()
    return (
        *triple,
        f"--iree-llvmcpu-target-cpu={name}",
        f"--iree-llvmcpu-target-cpu-features={','.join(f'+{feature}' for feature in sorted(features))}",
    )


def _host_features() -> frozenset[str]:
    """Return the features that the operating system lists, by LLVM's names."""
    return frozenset(LLVM_NAMES.get(flag, flag) for flag in _linux_flags() or _macos_flags())


def _linux_flags() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return value.split()
    return []


def _macos_flags() -> list[str]:
    """Return the features of Apple silicon: lines such as `hw.optional.arm.FEAT_DotProd: 1`."""
    try:
        command = ["/usr/sbin/sysctl", "hw.optional.arm"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []  # another system, or a Mac with Intel's CPU: no instruction is chosen by a feature there
    pairs = (line.rpartition(".")[2].partition(":") for line in lines)
    return [name for name, _, value in pairs if value.strip() == "1"]
