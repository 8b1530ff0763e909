"""IREE devices: opening them, compile flags, loading of modules, and copies of data to and from them."""

import mmap
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
from iree.runtime._binding import create_hal_driver
from numpy.typing import NDArray

from workers.errors import LoadRefused
from workers.host.probe import short
from workers.host.topology import usable_cores
from workers.iree.device.buffers import DeviceBuffer, Input, zero_pages
from workers.iree.device.compute_threads import compute_threads, pin_threads
from workers.iree.device.cpu import Cpu
from workers.iree.device.drivers import DEFAULT_DEVICE, GENERIC_DEVICE, LOCAL_DRIVERS, driver_of
from workers.iree.device.gpu import COMMON_FLAGS, GPU_TARGETS, NEEDS, Gpu
from workers.iree.device.thread_policy import stop_yielding, yield_to_compute_threads
from workers.precision import CpuTarget

STACK_BYTES = 1 << 18
"""The most memory that a graph takes on the stack of a compute thread, whose stack is twice as large. By default it has
128 KiB, and a graph that takes more would write beyond the guard page to other memory."""
OTHER_PLUGINS = (
    *("hal_target_cuda", "hal_target_metal_spirv", "hal_target_rocm", "hal_target_vmvx", "hal_target_vulkan_spirv"),
    *("input_torch", "input_tosa"),
)
"""Plugins of iree-compile for other devices and inputs. Each adds patterns to all of its canonicalization passes, in
which a small graph spends most of its time: without them it takes 5 % less, and the module is the same."""
GENERIC_FLAGS = (
    *(f"--iree-plugin=-{name}" for name in OTHER_PLUGINS),
    "--iree-opt-level=O3",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    # The default of 32 KiB fails some prefill graphs.
    f"--iree-llvmcpu-stack-allocation-limit={STACK_BYTES}",
    # What is compiled is checked as it is read; checking it again after each of the compiler's own passes takes a third
    # of the time, and changes nothing.
    "--verify=false",
)
CPU_FLAGS = (
    *GENERIC_FLAGS,
    # The graphs hold packed operands and their products already: packing again would only cost.
    "--iree-opt-data-tiling=false",
    # Constants are computed when a module is loaded; the compiler would compile and run that first, a second a graph.
    "--iree-opt-const-eval=false",
    "--iree-llvmcpu-enable-ukernels=all",
    "--iree-opt-generalize-matmul=false",
)
_ELEMENT_TYPES: Mapping[str, rt.HalElementType] = {
    "float32": rt.HalElementType.FLOAT_32,
    "float16": rt.HalElementType.FLOAT_16,
    "bfloat16": rt.HalElementType.BFLOAT_16,
    "int8": rt.HalElementType.INT_8,
    "int32": rt.HalElementType.SINT_32,
    "uint32": rt.HalElementType.UINT_32,
}
_BITS: Mapping[str, type[np.unsignedinteger[Any]]] = {
    "float32": np.uint32,
    "int32": np.uint32,
    "uint32": np.uint32,
    "int8": np.uint8,
}
"""The types of the bits of elements; the others have 16."""
STAGING_BYTES = 1 << 16
"""The largest result for which one buffer of host memory is kept: the tokens of a step, not its logits."""


class DeviceError(LoadRefused):
    """Raised when a device cannot be used; the text names it, the reason, and the alternatives."""


def available_drivers() -> list[str]:
    """Return the drivers of the installed runtime; a machine may lack the hardware for some."""
    return sorted(rt.query_available_drivers())


class Device:
    """One opened device. Owned by the runner; used by its thread only."""

    def __init__(
        self,
        uri: str,
        threads: int,
        cpu: CpuTarget = "host",
        pins: Sequence[Sequence[int]] = (),
        *,
        compile_only: bool = False,
    ) -> None:
        """`threads` is the number of compute threads of a local driver, 0 one a core; `cpu` is what graphs may use of
        its instructions; `pins` are the CPUs that each compute thread is pinned to, if there are any. With
        `compile_only` nothing is loaded, and `cpu` may be one that this machine does not have. Raises `DeviceError` and
        `CpuError`."""
        self.uri = uri or DEFAULT_DEVICE
        generic = self.uri == GENERIC_DEVICE
        self.driver = DEFAULT_DEVICE if generic else driver_of(self.uri)
        if self.driver not in available_drivers():
            raise DeviceError(
                f"device: {self.uri!r} needs IREE's driver {self.driver!r}, which the installed iree-base-runtime "
                f"does not have; it has {', '.join(available_drivers())}"
            )
        on_cpu = self.driver in LOCAL_DRIVERS
        if cpu != "host" and not on_cpu:
            raise DeviceError(
                f"cpu: {cpu!r} has no effect on {self.uri!r}, which is no CPU: leave the setting `cpu` out"
            )
        self._cpu = Cpu.named(cpu) if compile_only else Cpu.of(cpu)
        self.local = on_cpu and not generic
        """The host reads and writes the device's memory."""
        self.threads = threads or usable_cores() if on_cpu else 1
        """Compute threads."""
        if on_cpu:
            rt.flags.parse_flags(
                f"--task_topology_group_count={self.threads}", f"--task_worker_stack_size={2 * STACK_BYTES}"
            )
        before = set(compute_threads())
        if self.driver == DEFAULT_DEVICE:
            stop_yielding()
        try:
            # The driver that the runtime keeps has the threads of the first device of the process.
            driver = create_hal_driver(self.driver) if on_cpu else rt.get_driver(self.driver)
            bare = self.driver == self.uri or generic
            self._device = driver.create_default_device() if bare else driver.create_device_by_uri(self.uri)
            self.name, self._gpu = _described(driver, self.driver, self.uri)
        except (RuntimeError, ValueError) as error:
            needs = f"; it {NEEDS[self.driver]}" if self.driver in NEEDS else ""
            raise DeviceError(
                f"device: {self.uri!r} cannot be opened on this machine: {short(error)}{needs}. "
                "`baton doctor` shows which devices work here"
            ) from error
        if self.driver == DEFAULT_DEVICE:
            if pins:
                pin_threads(pins, before)
            yield_to_compute_threads()
        self.instance = rt.VmInstance()
        self._hal = rt.create_hal_module(self.instance, self._device)
        self._compiled: list[rt.VmModule] = []
        self._types: dict[int, np.dtype[Any]] = {}
        """numpy's types by the runtime's numbers, which take long to look up."""
        self._staging: rt.HalBuffer | None = None
        """Host memory that a device which is not local copies small results to."""

    def compile_flags(self) -> tuple[str, ...]:
        """Return iree-compile's flags for this device. Raises `DeviceError` for a driver without a backend."""
        if self.driver in LOCAL_DRIVERS:
            return (*COMMON_FLAGS, *self._cpu.flags, *(CPU_FLAGS if self.local else GENERIC_FLAGS))
        if self._gpu is None:
            raise DeviceError(
                f"device: graphs are not compiled for driver {self.driver!r}, only for "
                f"{', '.join((*LOCAL_DRIVERS, *GPU_TARGETS))}; on Apple silicon take --backend mlx"
            )
        if self.driver == "hip" and not self._gpu.architecture:
            raise DeviceError(
                f"device: the driver does not say what GPU {self.uri!r} is, which graphs are compiled for"
            )
        return self._gpu.flags

    def compile_target(self) -> str:
        """Return what the target depends on besides the flags."""
        return self._cpu.digest if self.driver in LOCAL_DRIVERS else sys.platform

    def check(self, dtype: str) -> None:
        """Raise `DeviceError` for a number type that graphs cannot compute with on this device."""
        if self._gpu is not None and (lack := self._gpu.lacks(dtype)):
            others = [other for other in ("float16", "float32") if not self._gpu.lacks(other)]
            raise DeviceError(
                f"device: {self.uri!r} cannot compute in {dtype}: {lack}; set --dtype {' or '.join(others)}"
            )

    def load(self, module: Path, parameters: rt.ParameterIndex | None, scope: str) -> "Module":
        """Load a compiled module, with its parameters from an index.

        Raises `DeviceError` where they do not fit, or the driver does not take the module.
        """
        # `rt.VmModule.mmap` opens files for writing, which fails for another user's and on a read-only disk.
        with module.open("rb") as file:
            compiled = rt.VmModule.wrap_buffer(self.instance, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._compiled.append(compiled)
        modules = [self._hal]
        if parameters is not None:
            provider = parameters.create_provider(scope=scope)
            modules.append(rt.create_io_parameters_module(self.instance, provider))
        try:
            context = rt.VmContext(self.instance, modules=[*modules, compiled])
        except (RuntimeError, ValueError, MemoryError) as error:
            if self._gpu is None:  # the module is truncated, or another program's: the CPU is not the cause
                raise
            raise DeviceError(f"device: {self.uri!r} does not take the model's graphs: {short(error)}") from error
        return Module(context, compiled)

    def close(self) -> None:
        """Free the device, after its owner has released modules and buffers.

        The compiled files are released last. Dropping the last reference to one calls into Python; if a thread of the
        device did so, late in cleaning up after a call, it would wait for the GIL, which this thread holds while it
        waits for the device's threads to end.
        """
        self._staging = None
        del self._hal, self._device
        self._compiled.clear()

    @property
    def allocated(self) -> int:
        """The bytes of live buffers, results and inputs of calls included; 0 if the runtime does not count."""
        counts = self._device.allocator.statistics
        kinds = ("host_bytes", "device_bytes")
        return sum(int(counts.get(f"{kind}_allocated", 0)) - int(counts.get(f"{kind}_freed", 0)) for kind in kinds)

    def upload(self, array: NDArray[Any], element: str = "") -> rt.HalBufferView:
        """Copy an array to the device, as elements of another type of the same size if one is named."""
        return self._device.allocator.allocate_buffer_copy(
            memory_type=int(rt.MemoryType.DEVICE_LOCAL),
            allowed_usage=int(rt.BufferUsage.DEFAULT),
            device=self._device,
            buffer=np.ascontiguousarray(array),
            element_type=int(_ELEMENT_TYPES[element or array.dtype.name]),
        )

    def zeros(self, shape: Sequence[int], dtype: str) -> DeviceBuffer:
        """Allocate a zeroed buffer on the device. Raises `DeviceError` when there is no room."""
        bits = np.dtype(_BITS.get(dtype, np.uint16))
        size = int(np.prod(shape, dtype=np.int64)) * bits.itemsize
        try:
            if self.local:
                return self._resident(shape, dtype, bits, size)
            return DeviceBuffer(self.upload(np.zeros(shape, bits), dtype), size, None)
        except (RuntimeError, MemoryError, OSError) as error:
            raise DeviceError(f"device: {self.uri!r} has no room for {size} bytes of KV cache") from error

    def _resident(self, shape: Sequence[int], dtype: str, bits: np.dtype[Any], size: int) -> DeviceBuffer:
        memory = zero_pages(size)
        window = np.frombuffer(memory, bits).reshape(tuple(shape))
        # The buffer keeps the array, and the array the memory, for as long as the device may use it.
        buffer = self._device.allocator.import_host_allocation(
            buffer=window,
            memory_type=int(rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE),
            allowed_usage=int(rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING),
        )
        view = rt.HalBufferView(buffer, list(shape), int(_ELEMENT_TYPES[dtype]))
        return DeviceBuffer(view, size, window, memory)

    def input(self, shape: Sequence[int], dtype: str) -> Input:
        """Allocate an input that is written for each call. Raises `DeviceError` when there is no room."""
        return Input(self.upload, self.zeros(shape, dtype) if self.local else None, shape, dtype)

    def download(self, view: rt.HalBufferView) -> NDArray[Any]:
        """Copy a result to the host."""
        return np.array(self._mapped(view)) if self.local else self._read_back(view)

    def window(self, view: rt.HalBufferView) -> NDArray[Any]:
        """Return a result for the host to read: in place on a local driver, valid as long as the view."""
        return self._mapped(view) if self.local else self._read_back(view)

    def numbers(self, view: rt.HalBufferView) -> list[int]:
        """Return a result of a few integers."""
        numbers: list[int] = self.window(view).tolist()
        return numbers

    def _mapped(self, view: rt.HalBufferView) -> NDArray[Any]:
        """Return a result in place, valid as long as the view."""
        mapped: NDArray[Any] = view.map().asarray(view.shape, self._type(view))
        return mapped

    def _read_back(self, view: rt.HalBufferView) -> NDArray[Any]:
        """Copy a result through memory that host and device both see.

        `rt.DeviceArray` has the device write into an array of numpy's instead, which Vulkan takes at whole pages only.
        """
        source = view.get_buffer()
        staging = self._staging
        if staging is None or staging.byte_length() < source.byte_length():
            staging = self._device.allocator.allocate_buffer(
                memory_type=int(rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE),
                allowed_usage=int(rt.BufferUsage.TRANSFER | rt.BufferUsage.MAPPING_SCOPED),
                allocation_size=source.byte_length(),
            )
            if source.byte_length() <= STAGING_BYTES:
                self._staging = staging
        done = self._device.create_semaphore(0)
        self._device.queue_copy(source, staging, wait_semaphores=[], signal_semaphores=[(done, 1)])
        rt.HalFence.create_at(done, 1).wait()
        values: NDArray[Any] = np.array(staging.map().asarray(view.shape, self._type(view)))
        return values

    def _type(self, view: rt.HalBufferView) -> np.dtype[Any]:
        kind = view.element_type
        if kind not in self._types:
            self._types[kind] = np.dtype(rt.HalElementType.map_to_dtype(rt.HalElementType(kind)))
        return self._types[kind]


def _described(driver: rt.HalDriver, name: str, uri: str) -> tuple[str, Gpu | None]:
    """Return the name of the device that a URI names by number or path, or of the first one, and a GPU's description.

    Raises `ValueError` where the driver lists no such device.
    """
    if name not in GPU_TARGETS:
        return "", None
    devices = driver.query_available_devices()
    path = uri.partition("://")[2].partition("?")[0]
    number = int(path) if path.isdecimal() else 0
    device = next((device for device in devices if device["path"] == path), None)
    if device is None:
        if number >= len(devices):
            raise ValueError(f"the driver lists {len(devices)} devices")
        device = devices[number]
    return str(device["name"]), Gpu.of(name, str(driver.dump_device_info(device["device_id"])))


class Results:
    """The results of a call. Each becomes an object when it is asked for: a step reads none of most of them."""

    def __init__(self, values: rt.VmVariantList) -> None:
        self._values = values

    def __getitem__(self, at: int) -> rt.HalBufferView:
        return self._values.get_as_object(at, rt.HalBufferView)

    def __iter__(self) -> Iterator[rt.HalBufferView]:
        return (self[at] for at in range(self._values.size))


class Module:
    """A loaded module; `call` runs one of its functions to the end."""

    def __init__(self, context: rt.VmContext, module: rt.VmModule) -> None:
        self._context = context
        self._module = module
        self._functions: dict[str, rt.VmFunction] = {}

    def call(self, name: str, *arguments: rt.HalBufferView | int) -> Results:
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = self._module.lookup_function(name)
        inputs, outputs = rt.VmVariantList(len(arguments)), rt.VmVariantList(4)
        for argument in arguments:
            if isinstance(argument, int):
                inputs.push_int(argument)
            else:
                inputs.push_ref(argument)
        self._context.invoke(function, inputs, outputs)
        return Results(outputs)
