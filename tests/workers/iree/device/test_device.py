"""Devices: which there are, what they are compiled for, and sentences for those that are missing."""

import errno
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iree import runtime as rt
from iree.compiler import compile_str
from numpy.typing import NDArray

from workers.iree.device import device as device_module
from workers.iree.device.buffers import zero_pages
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import STAGING_BYTES, Device, DeviceError, available_drivers
from workers.iree.device.drivers import GENERIC_DEVICE
from workers.iree.device.gpu import GPU_TARGETS, NEEDS, Gpu


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
    assert set(Cpu.of_host().flags) <= set(device.compile_flags())
    assert device.compile_target() == Cpu.of_host().digest


def test_the_generic_device_is_a_gpu_to_the_host() -> None:
    device = Device(GENERIC_DEVICE, 1)
    assert (device.uri, device.driver, device.local) == ("generic-task", "local-task", False)
    assert not any("ukernels" in flag for flag in device.compile_flags())
    assert device.compile_target() == Cpu.of_host().digest
    assert device.zeros((2, 3), "bfloat16").window is None


@pytest.mark.parametrize("driver", ["level-zero", "metal"])
def test_a_driver_that_graphs_are_not_compiled_for(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    device = Device("local-task", 1)
    monkeypatch.setattr(device, "driver", driver)
    with pytest.raises(DeviceError, match=f"not compiled for driver '{driver}', only for local-task, .*--backend mlx"):
        device.compile_flags()


@pytest.mark.parametrize("driver", [driver for driver in GPU_TARGETS if driver in available_drivers()])
def test_what_a_machine_must_have_is_said(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    def missing(_: str) -> None:
        raise ValueError("Error creating driver: c/runtime/driver.c:1: NOT_FOUND; no registry here")

    monkeypatch.setattr(rt, "get_driver", missing)
    words = rf"device: '{driver}' cannot be opened on this machine: no registry here; it {re.escape(NEEDS[driver])}\."
    with pytest.raises(DeviceError, match=f"{words} `baton doctor` shows"):
        Device(driver, 0)


def gpu(monkeypatch: pytest.MonkeyPatch, driver: str, text: str) -> Device:
    device = Device("local-task", 1)
    monkeypatch.setattr(device, "driver", driver)
    monkeypatch.setattr(device, "_gpu", Gpu.of(driver, text))
    return device


def test_a_gpu_is_compiled_for_as_its_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--iree-cuda-target=sm_89" in gpu(monkeypatch, "cuda", "- gpu-compute-capability: 9.0").compile_flags()
    with pytest.raises(DeviceError, match="the driver does not say what GPU 'local-task' is"):
        gpu(monkeypatch, "hip", "").compile_flags()


def test_a_number_type_that_a_device_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    device = gpu(monkeypatch, "vulkan", "vendor_id: 0x1ae0\nfeatures: shaderFloat16=no storageBuffer16BitAccess=no")
    device.check("float32")
    missing = "the device has no storageBuffer16BitAccess and no shaderFloat16; set --dtype float32"
    with pytest.raises(DeviceError, match=f"device: 'local-task' cannot compute in float16: {missing}"):
        device.check("float16")


def test_a_module_that_a_gpu_does_not_take(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "module.vmfb"
    compile_str(
        "func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> {%y = math.exp %x : tensor<2xf32> return %y : tensor<2xf32>}",
        output_file=str(file),
        extra_args=["--iree-hal-target-device=vulkan"],
    )
    with pytest.raises(DeviceError, match="device: 'local-task' does not take the model's graphs"):
        gpu(monkeypatch, "vulkan", "").load(file, None, "")


def test_a_module_on_a_disk_that_cannot_be_written_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache that came with an image, or that `baton compile` made as another user."""
    file = tmp_path / "module.vmfb"
    device = Device("local-sync", 1)
    compile_str(
        "func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> {%y = math.exp %x : tensor<2xf32> return %y : tensor<2xf32>}",
        output_file=str(file),
        extra_args=list(device.compile_flags()),
    )
    opened = open

    def read_only(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if set(mode) & set("wax+"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opened(path, mode, *arguments, **options)

    monkeypatch.setattr("builtins.open", read_only)
    monkeypatch.setattr("io.open", read_only)
    (result,) = device.load(file, None, "").call("f", device.upload(np.zeros(2, np.float32)))
    np.testing.assert_array_equal(device.download(result), np.ones(2, np.float32))


class Driver:
    """Lists two devices."""

    def query_available_devices(self) -> list[dict[str, Any]]:
        return [{"device_id": 7, "path": "GPU-a", "name": "first"}, {"device_id": 9, "path": "GPU-b", "name": "second"}]

    def dump_device_info(self, device: int) -> str:
        return f"- gpu-compute-capability: {device}.0"


@pytest.mark.parametrize(
    ("uri", "name", "capability"),
    [("cuda", "first", "7.0"), ("cuda://1", "second", "9.0"), ("cuda://GPU-b?x=1", "second", "9.0")],
)
def test_the_device_that_is_named_is_asked(uri: str, name: str, capability: str) -> None:
    driver: Any = Driver()
    called, gpu = device_module._described(driver, "cuda", uri)
    assert gpu is not None
    assert (called, gpu.facts["gpu-compute-capability"]) == (name, capability)


@pytest.mark.parametrize("driver", [driver for driver in GPU_TARGETS if driver in available_drivers()])
def test_a_device_that_the_driver_does_not_list_is_a_sentence(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    class Opens(Driver):
        def create_device_by_uri(self, _: str) -> None: ...

    monkeypatch.setattr(rt, "get_driver", lambda _: Opens())
    with pytest.raises(DeviceError, match=f"'{driver}://2' cannot be opened on this machine: the driver lists 2 dev"):
        Device(f"{driver}://2", 0)


@pytest.mark.parametrize("uri", ["local-sync", GENERIC_DEVICE])
def test_an_input_holds_what_was_put_last(uri: str) -> None:
    """On a device whose memory the host does not see, in a new buffer each time."""
    device = Device(uri, 1)
    given = device.input((2, 1), "float32")
    for values in ([[1.5], [2.5]], [[-1.0], [0.0]]):
        np.testing.assert_array_equal(device.download(given.put(np.array(values, np.float32))), values)
    given.array[1] = 7.0
    np.testing.assert_array_equal(device.download(given.ready()), [[-1.0], [7.0]])


@pytest.mark.parametrize("uri", ["local-sync", GENERIC_DEVICE])
def test_numbers(uri: str) -> None:
    device = Device(uri, 1)
    assert device.numbers(device.upload(np.array([3, -1, 7], np.int32))) == [3, -1, 7]
    large = np.arange(STAGING_BYTES // 4 + 1, dtype=np.int32)  # does not go through the memory that is kept
    assert device.numbers(device.upload(large)) == large.tolist()
    assert device.numbers(device.upload(np.array([5], np.int32))) == [5]


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32])
def test_up_and_down(dtype: type[np.number[Any]]) -> None:
    device = Device("local-sync", 1)
    array: NDArray[Any] = np.arange(12, dtype=dtype).reshape(3, 4)
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
