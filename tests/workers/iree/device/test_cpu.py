"""The CPU of the machine, and other ones."""

import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest

from workers.iree.device.cpu import TARGETS, Cpu, CpuError
from workers.iree.device.device import Device, DeviceError
from workers.precision import CpuTarget

NO_FILE = FileNotFoundError("/proc/cpuinfo")


def machine(monkeypatch: pytest.MonkeyPatch, name: str, cpuinfo: str | OSError) -> None:
    """Pretend to be a machine with this /proc/cpuinfo, or without one."""

    def read_text(path: Path) -> str:
        if isinstance(cpuinfo, OSError):
            raise cpuinfo
        return cpuinfo

    monkeypatch.setattr(platform, "machine", lambda: name)
    monkeypatch.setattr(Path, "read_text", read_text)


def sysctl(monkeypatch: pytest.MonkeyPatch, output: str | Exception) -> None:
    """Pretend that sysctl prints this, or fails."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert command == ["/usr/sbin/sysctl", "hw.optional.arm"]
        if isinstance(output, Exception):
            raise output
        return subprocess.CompletedProcess(command, 0, output)

    monkeypatch.setattr(subprocess, "run", run)


def test_the_host_has_the_names_of_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "AMD64", "processor : 0\nflags : fpu bmi1 avx_vnni avx512_vnni avx2\n")
    assert Cpu.of_host() == Cpu("x86_64", frozenset({"fpu", "bmi", "avxvnni", "avx512vnni", "avx2"}))


def test_aarch64_under_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of a Neoverse V1."""
    features = "fp asimd evtstrm aes atomics fphp asimdhp cpuid asimdrdm asimddp sve i8mm bf16 rng"
    machine(monkeypatch, "aarch64", f"processor\t: 0\nBogoMIPS\t: 2100.00\nFeatures\t: {features}\n")
    host = Cpu.of_host()
    assert host.machine == "aarch64"
    assert host.features >= {"neon", "lse", "fullfp16", "dotprod", "i8mm", "bf16", "sve"}
    assert Cpu.of("neon-i8mm").features == TARGETS["neon-i8mm"].features
    assert host.flags == (
        "--iree-llvmcpu-target-triple=aarch64-unknown-linux-gnu",
        "--iree-llvmcpu-target-cpu=generic",
        "--iree-llvmcpu-target-cpu-features=+bf16,+dotprod,+fullfp16,+i8mm,+lse,+neon",
    )


def test_apple_silicon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of an M1, which has no FEAT_I8MM and no FEAT_BF16."""
    machine(monkeypatch, "arm64", NO_FILE)
    sysctl(
        monkeypatch,
        "hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_BF16: 0\nhw.optional.arm.FEAT_I8MM: 0\n"
        "hw.optional.arm.FEAT_LSE: 1\nhw.optional.arm.FEAT_FP16: 1\nhw.optional.arm.AdvSIMD: 1\n",
    )
    host = Cpu.of_host()
    assert host.machine == "aarch64"
    assert {"neon", "lse", "fullfp16", "dotprod"} <= host.features
    assert not host.features & {"i8mm", "bf16"}
    assert Cpu.of("neon-dotprod").target == "neon-dotprod"
    with pytest.raises(CpuError, match="'neon-i8mm' needs bf16, i8mm, which this machine's CPU does not have"):
        Cpu.of("neon-i8mm")


def test_every_aarch64_cpu_has_neon(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "aarch64", NO_FILE)
    sysctl(monkeypatch, FileNotFoundError())
    assert Cpu.of_host().features == {"neon"}
    assert Cpu.of("neon").target == "neon"


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_has_its_own_instructions_alone(monkeypatch: pytest.MonkeyPatch, target: CpuTarget) -> None:
    kind = TARGETS[target]
    others = {"x86_64": {"sse4a", "avx512bf16"}, "aarch64": {"sve"}}[kind.machine]
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu(kind.machine, kind.features | others))
    cpu = Cpu.of(target)
    assert cpu.features == kind.features
    assert cpu.digest != Cpu.of("host").digest
    *triple, name, features = cpu.flags
    assert name == f"--iree-llvmcpu-target-cpu={kind.name}"
    assert features.count("+") == len(kind.features)
    assert bool(triple) == (kind.machine == "aarch64")


def test_what_the_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("x86_64", TARGETS["avx2"].features))
    assert Cpu.of("avx2").target == "avx2"
    with pytest.raises(CpuError, match="cpu: 'avx-vnni' needs avxvnni, which this machine's CPU does not have"):
        Cpu.of("avx-vnni")


def test_instructions_that_no_system_lists_are_not_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("x86_64", frozenset()))
    with pytest.raises(CpuError, match="cpu: 'avx2' cannot be checked"):
        Cpu.of("avx2")


def test_another_architecture_is_compiled_for_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("x86_64", TARGETS["avx2"].features))
    assert Cpu.named("neon").machine == "aarch64"
    with pytest.raises(CpuError) as refused:
        Device("local-sync", 1, "neon")
    assert str(refused.value) == (
        "cpu: 'neon' is for aarch64, and this machine's CPU is x86_64: leave the setting `cpu` out, or take one of "
        "avx2, avx-vnni, avx512, avx512-vnni. `baton compile` compiles for other machines"
    )
    device = Device("local-sync", 1, "neon", compile_only=True)
    assert device.compile_target() == "aarch64 neon"
    device.close()
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("riscv64", frozenset({"v"})))
    with pytest.raises(CpuError, match=r"leave the setting `cpu` out\. `baton compile`"):
        Cpu.of("neon")


def test_a_device_compiles_for_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("x86_64", TARGETS["avx2"].features | {"avx512f"}))
    device = Device("local-sync", 1, "avx2")
    assert "--iree-llvmcpu-target-cpu=x86-64-v3" in device.compile_flags()
    assert "--iree-llvmcpu-target-cpu=host" not in device.compile_flags()
    assert device.compile_target() == Cpu.of("avx2").digest
    device.close()


def test_a_target_for_what_is_no_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.iree.device.device.available_drivers", lambda: ["cuda"])
    with pytest.raises(DeviceError, match="cpu: 'avx2' has no effect on 'cuda', which is no CPU"):
        Device("cuda", 0, "avx2")
