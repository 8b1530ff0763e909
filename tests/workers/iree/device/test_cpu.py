"""The CPU of the machine, and lesser ones."""

from pathlib import Path

import pytest

from workers.iree.device.cpu import TARGETS, Cpu, CpuError
from workers.iree.device.device import Device, DeviceError
from workers.precision import CpuTarget


def test_the_host_has_the_names_of_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "processor : 0\nflags : fpu bmi1 avx_vnni avx512_vnni avx2\n"
    monkeypatch.setattr(Path, "read_text", lambda self: flags)
    assert Cpu.of_host().features == {"fpu", "bmi", "avxvnni", "avx512vnni", "avx2"}


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_has_its_own_instructions_alone(monkeypatch: pytest.MonkeyPatch, target: CpuTarget) -> None:
    name, features = TARGETS[target]
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("x86_64", features | {"sse4a", "avx512bf16"}))
    cpu = Cpu.of(target)
    assert cpu.features == features
    assert cpu.digest != Cpu.of("host").digest
    assert cpu.flags[0] == f"--iree-llvmcpu-target-cpu={name}"
    assert "+avx2," in cpu.flags[1]


def test_what_the_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("x86_64", TARGETS["avx2"][1]))
    assert Cpu.of("avx2").target == "avx2"
    with pytest.raises(CpuError, match="cpu: 'avx-vnni' needs avxvnni, which this machine's CPU does not have"):
        Cpu.of("avx-vnni")
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("aarch64", frozenset({"neon"})))
    with pytest.raises(CpuError, match="'avx2' needs avx, avx2, bmi, bmi2, f16c, fma"):
        Cpu.of("avx2")


def test_instructions_that_no_system_lists_are_not_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("x86_64", frozenset()))
    with pytest.raises(CpuError, match="cpu: 'avx2' cannot be checked"):
        Cpu.of("avx2")


def test_a_device_compiles_for_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("x86_64", TARGETS["avx2"][1] | {"avx512f"}))
    device = Device("local-sync", 1, "avx2")
    assert "--iree-llvmcpu-target-cpu=x86-64-v3" in device.compile_flags()
    assert "--iree-llvmcpu-target-cpu=host" not in device.compile_flags()
    assert device.compile_target() == Cpu.of("avx2").digest
    device.close()


def test_a_target_for_what_is_no_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.iree.device.device.available_drivers", lambda: ["cuda"])
    with pytest.raises(DeviceError, match="cpu: 'avx2' has no effect on 'cuda', which is no CPU"):
        Device("cuda", 0, "avx2")
