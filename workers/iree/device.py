"""IREE's devices: which there are, how modules are compiled for them, and how data gets there and back."""

import contextlib
import mmap
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from workers.affinity import usable_cores
from workers.iree.cpu import Cpu
from workers.iree.gpu import AMD_NODES, COMMON_FLAGS, GPU_TARGETS, gpu_architecture, gpu_flags
from workers.probe import short
from workers.refused import LoadRefused

DEFAULT_DEVICE = "local-task"
ALONE = "local-sync"
"""The driver on which the thread that calls computes."""
LOCAL_DRIVERS = (DEFAULT_DEVICE, ALONE)
"""Drivers that compute on this CPU, in this process's memory."""

CPU_FLAGS = (
    "--iree-opt-level=O3",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    # The graphs hold packed operands and their products already: packing again would only cost.
    "--iree-opt-data-tiling=false",
    # Constants are computed when a module is loaded; the compiler would compile and run that first, a second a graph.
    "--iree-opt-const-eval=false",
    "--iree-llvmcpu-enable-ukernels=all",
    "--iree-opt-generalize-matmul=false",
    # The default of 32 KiB fails some prefill graphs.
    "--iree-llvmcpu-stack-allocation-limit=262144",
)
NO_RESERVE = 0x4000 if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") else 0
"""MAP_NORESERVE (mmap(2)), which Python names from 3.13 on: without it Linux refuses what is more than all memory."""
_ELEMENT_TYPES: Mapping[str, rt.HalElementType] = {
    "float32": rt.HalElementType.FLOAT_32,
    "float16": rt.HalElementType.FLOAT_16,
    "bfloat16": rt.HalElementType.BFLOAT_16,
    "int8": rt.HalElementType.INT_8,
    "int32": rt.HalElementType.SINT_32,
    "uint32": rt.HalElementType.UINT_32,
}


class DeviceError(LoadRefused):
    """A device cannot be used; the text says which, why, and what there is instead."""


def available_drivers() -> list[str]:
    """The drivers that the installed runtime was built with; a machine may lack the hardware for some."""
    return sorted(rt.query_available_drivers())


class Device:
    """One opened device. Owned by the runner; used by its thread only."""

    def __init__(self, uri: str, threads: int) -> None:
        """`threads` is the number of compute threads of a local driver, 0 one a core. Raises `DeviceError`."""
        self.uri = uri or DEFAULT_DEVICE
        self.driver = self.uri.partition("://")[0]
        if self.driver not in available_drivers():
            raise DeviceError(
                f"device: {self.uri!r} needs IREE's driver {self.driver!r}, which the installed iree-base-runtime "
                f"does not have; it has {', '.join(available_drivers())}"
            )
        self.threads = threads or usable_cores() if self.local else 1
        """That compute."""
        if self.local:
            rt.flags.parse_flags(f"--task_topology_group_count={self.threads}")
        try:
            driver = rt.get_driver(self.driver)
            bare = self.driver == self.uri
            self._device = driver.create_default_device() if bare else driver.create_device_by_uri(self.uri)
        except (RuntimeError, ValueError) as error:
            raise DeviceError(f"device: {self.uri!r} cannot be opened on this machine: {short(error)}") from error
        self.instance = rt.VmInstance()
        self._hal = rt.create_hal_module(self.instance, self._device)
        self._compiled: list[rt.VmModule] = []
        self._types: dict[int, np.dtype[Any]] = {}
        """numpy's, by the runtime's number, which takes long to look up."""

    @property
    def local(self) -> bool:
        return self.driver in LOCAL_DRIVERS

    def compile_flags(self) -> tuple[str, ...]:
        """iree-compile's flags for this device. Raises `DeviceError` where no backend is known for the driver."""
        if self.local:
            return (*COMMON_FLAGS, *CPU_FLAGS)
        if self.driver not in GPU_TARGETS:
            raise DeviceError(
                f"device: graphs are not compiled for driver {self.driver!r}, only for "
                f"{', '.join((*LOCAL_DRIVERS, *GPU_TARGETS))}; on Apple silicon take --backend mlx"
            )
        architecture = gpu_architecture(self.driver)
        if self.driver == "hip" and not architecture:
            raise DeviceError(f"device: the kernel does not say what GPU {self.uri!r} is (/{AMD_NODES})")
        return gpu_flags(self.driver, architecture)

    def compile_target(self) -> str:
        """What of the target the flags do not say."""
        return Cpu.of_host().digest if self.local else sys.platform

    def load(self, module: Path, parameters: rt.ParameterIndex | None, scope: str) -> "Module":
        """Load a compiled module, with its parameters from an index."""
        compiled = rt.VmModule.mmap(self.instance, str(module))
        self._compiled.append(compiled)
        modules = [self._hal]
        if parameters is not None:
            provider = parameters.create_provider(scope=scope)
            modules.append(rt.create_io_parameters_module(self.instance, provider))
        context = rt.VmContext(self.instance, modules=[*modules, compiled])
        return Module(context, compiled)

    def close(self) -> None:
        """Free the device; the owner has let go of its modules and buffers.

        The compiled files go last. Whoever drops the last reference to one calls into Python; a device's thread that
        did so, late in clearing up after a call, would wait for the lock that this thread holds while it waits for
        the device's threads to end.
        """
        del self._hal, self._device
        self._compiled.clear()

    @property
    def allocated(self) -> int:
        """Bytes of buffers that are alive, results and inputs of calls included; 0 where the runtime does not count."""
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

    def zeros(self, shape: Sequence[int], dtype: str) -> "Resident":
        """A buffer that stays on the device, all zero. Raises `DeviceError` when there is no room."""
        bits = np.dtype(np.uint32 if dtype in ("float32", "int32", "uint32") else np.uint16)
        size = int(np.prod(shape, dtype=np.int64)) * bits.itemsize
        try:
            if self.local:
                return self._resident(shape, dtype, bits, size)
            return Resident(self.upload(np.zeros(shape, bits), dtype), size, None)
        except (RuntimeError, MemoryError, OSError) as error:
            raise DeviceError(f"device: {self.uri!r} has no room for {size} bytes of KV cache") from error

    def _resident(self, shape: Sequence[int], dtype: str, bits: np.dtype[Any], size: int) -> "Resident":
        memory = zero_pages(size)
        window = np.frombuffer(memory, bits).reshape(tuple(shape))
        # The buffer keeps the array, and the array the memory, for as long as the device may use it.
        buffer = self._device.allocator.import_host_allocation(
            buffer=window,
            memory_type=int(rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE),
            allowed_usage=int(rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING),
        )
        view = rt.HalBufferView(buffer, list(shape), int(_ELEMENT_TYPES[dtype]))
        return Resident(view, size, window, memory)

    def input(self, shape: Sequence[int], dtype: str) -> "Input":
        """What calls read from again and again. Raises `DeviceError` when there is no room."""
        return Input(self, self.zeros(shape, dtype) if self.local else None, shape, dtype)

    def download(self, view: rt.HalBufferView) -> NDArray[Any]:
        """Copy a result to the host."""
        if self.local:  # without what `rt.DeviceArray` looks up first, which takes longer than a few numbers
            return np.array(self._mapped(view))
        return np.array(rt.DeviceArray(self._device, view).to_host())

    def numbers(self, view: rt.HalBufferView) -> list[int]:
        """A result of a few integers."""
        values = self._mapped(view) if self.local else self.download(view)
        numbers: list[int] = values.tolist()
        return numbers

    def _mapped(self, view: rt.HalBufferView) -> NDArray[Any]:
        """A result where it lies, for as long as the view does."""
        kind = view.element_type
        if kind not in self._types:
            self._types[kind] = np.dtype(rt.HalElementType.map_to_dtype(rt.HalElementType(kind)))
        mapped: NDArray[Any] = view.map().asarray(view.shape, self._types[kind])
        return mapped


def zero_pages(size: int) -> mmap.mmap:
    """Memory of this process alone that reads as zero, and costs nothing until it is written to, page by page.

    It may be more than the machine has: who writes to it bounds what is there. Raises `OSError` when there is no
    address space for it.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    if sys.platform == "linux":
        # Where huge pages are always given, one row would take two megabytes of each run of rows.
        with contextlib.suppress(OSError):  # this kernel has none
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


@dataclass(slots=True)
class Resident:
    """A buffer on the device; on a local driver also a window of its bits, and the memory that they lie in."""

    view: rt.HalBufferView
    nbytes: int
    window: NDArray[Any] | None
    memory: mmap.mmap | None = None


class Input:
    """An argument that is written anew for each call: on a local driver where the call will read it."""

    def __init__(self, device: Device, memory: Resident | None, shape: Sequence[int], dtype: str) -> None:
        """`memory` is of this shape and type, and None where calls cannot read the host's."""
        self._device = device
        self._dtype = dtype
        self._view = None if memory is None or memory.window is None else memory.view
        own = np.zeros(tuple(shape), dtype) if memory is None or memory.window is None else memory.window
        self.array: NDArray[Any] = own.view(dtype)
        """To be written to between two calls."""

    def ready(self) -> rt.HalBufferView:
        """The argument for the next call: what `array` holds."""
        return self._device.upload(self.array, self._dtype) if self._view is None else self._view

    def put(self, values: NDArray[Any]) -> rt.HalBufferView:
        """The argument for the next call, with these values."""
        self.array[...] = values
        return self.ready()


class Module:
    """A loaded module; `call` runs one of its functions to the end."""

    def __init__(self, context: rt.VmContext, module: rt.VmModule) -> None:
        self._context = context
        self._module = module
        self._functions: dict[str, rt.VmFunction] = {}

    def call(self, name: str, *arguments: rt.HalBufferView | int) -> list[rt.HalBufferView]:
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
        return [outputs.get_as_object(i, rt.HalBufferView) for i in range(outputs.size)]
