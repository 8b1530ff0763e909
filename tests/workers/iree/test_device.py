"""Devices: which there are, what they are compiled for, and sentences for those that are missing."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from workers.iree import device as device_module
from workers.iree.cpu import Cpu
from workers.iree.device import Device, DeviceError, available_drivers, zero_pages


def test_unknown_driver_is_a_sentence() -> None:
    with pytest.raises(DeviceError, match=r"device: 'abacus://0' needs IREE's driver 'abacus'.*it has .*local-task"):
        Device("abacus://0", 0)


def test_hardware_that_is_not_there_is_a_sentence() -> None:
    missing = [driver for driver in ("hip", "cuda") if driver in available_drivers()]
    if not missing:
        pytest.skip("the runtime has no driver for hardware that could be missing")
    try:
        Device(f"{missing[0]}://9", 0)
    except DeviceError as error:
        assert f"'{missing[0]}://9' cannot be opened on this machine" in str(error)  # noqa: PT017
    else:
        pytest.skip("the hardware is there")


def test_empty_is_the_cpu() -> None:
    device = Device("", 1)
    assert (device.uri, device.local) == ("local-task", True)
    assert "--iree-llvmcpu-target-cpu=host" in device.compile_flags()
    assert device.compile_target() == Cpu.of_host().digest


def test_gpu_flags_have_no_cpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("local-task", 1)
    monkeypatch.setattr(device, "driver", "cuda")
    monkeypatch.setattr(device_module, "gpu_architecture", lambda driver: "sm_90")
    flags = device.compile_flags()
    assert "--iree-hal-target-device=cuda" in flags
    assert "--iree-cuda-target=sm_90" in flags
    assert not any("llvmcpu" in flag for flag in flags)


@pytest.mark.parametrize("driver", ["level-zero", "metal"])
def test_a_driver_that_graphs_are_not_compiled_for(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    device = Device("local-task", 1)
    monkeypatch.setattr(device, "driver", driver)
    with pytest.raises(DeviceError, match=f"not compiled for driver '{driver}', only for local-task, .*--backend mlx"):
        device.compile_flags()


def test_a_gpu_that_the_kernel_does_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("local-task", 1)
    monkeypatch.setattr(device, "driver", "hip")
    monkeypatch.setattr(device_module, "gpu_architecture", lambda driver: "")
    with pytest.raises(DeviceError, match=r"the kernel does not say what GPU 'local-task' is \(/sys/class/kfd"):
        device.compile_flags()


@pytest.mark.parametrize("driver", ["local-sync", "cuda"])
def test_an_input_holds_what_was_put_last(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    device = Device("local-sync", 1)
    monkeypatch.setattr(device, "driver", driver)  # other drivers are given a new buffer each time
    given = device.input((2, 1), "float32")
    for values in ([[1.5], [2.5]], [[-1.0], [0.0]]):
        np.testing.assert_array_equal(device.download(given.put(np.array(values, np.float32))), values)
    given.array[1] = 7.0
    np.testing.assert_array_equal(device.download(given.ready()), [[-1.0], [7.0]])


@pytest.mark.parametrize("driver", ["local-sync", "cuda"])
def test_numbers(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    device = Device("local-sync", 1)
    monkeypatch.setattr(device, "driver", driver)
    assert device.numbers(device.upload(np.array([3, -1, 7], np.int32))) == [3, -1, 7]


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32])
def test_up_and_down(dtype: type) -> None:
    device = Device("local-sync", 1)
    array = np.arange(12, dtype=dtype).reshape(3, 4)
    np.testing.assert_array_equal(device.download(device.upload(array)), array)


def test_resident_memory_is_zero_and_writable() -> None:
    resident = Device("local-sync", 1).zeros((2, 3), "bfloat16")
    assert resident.nbytes == 12
    assert resident.window is not None
    assert resident.window.dtype == np.uint16
    assert not resident.window.any()


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="what the kernel of Linux says in /proc")


@on_linux
def test_a_cache_that_is_never_filled_may_be_larger_than_all_memory() -> None:
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        pytest.skip("this system gives no memory that it does not have")
    values = 4 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    resident = Device("local-sync", 1).zeros((values,), "bfloat16")
    assert resident.window is not None
    resident.window[-1] = 7
    assert (resident.nbytes, resident.window[0]) == (2 * values, 0)


@on_linux
def test_pages_are_small_where_the_system_gives_huge_ones() -> None:
    """A row is a few bytes in each of many runs of rows: huge pages would take thousands of times as much."""
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no huge pages")
    pages = zero_pages(1 << 24)
    address = np.frombuffer(pages, np.uint8).__array_interface__["data"][0]
    flags: list[str] = []
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(end, 16) for end in first.split("-"))
            inside = low <= address < high
        elif inside and first == "VmFlags:":
            flags = line.split()[1:]
    assert "nh" in flags
