"""A device whose modules are run by an emulator, one process for each call, in place of IREE's local drivers."""

import mmap
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from tests.workers.iree.aarch64.emulator import Emulator
from workers.iree.device.buffers import DeviceBuffer, zero_pages
from workers.iree.device.device import Device
from workers.precision import CpuTarget

BITS = {"f32": np.float32, "i32": np.int32, "ui32": np.uint32, "i8": np.int8, "f16": np.float16, "bf16": np.uint16}
"""numpy's types of the runtime's, or of their bits."""
ELEMENTS = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "int32": "i32", "uint32": "ui32",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostArray:
    """An array in place of a buffer on the device."""

    bits: NDArray[Any]
    element: str

    @property
    def shape(self) -> list[int]:
        return list(self.bits.shape)

    @property
    def described(self) -> str:
        """Its type, as the runtime's programs take it."""
        return "x".join([*map(str, self.bits.shape), self.element])


class EmulatedDevice(Device):
    """A device of AArch64 with the interface of `Device`; its buffers are arrays of this process."""

    def __init__(self, emulator: Emulator, uri: str, threads: int, cpu: CpuTarget) -> None:
        super().__init__(uri, threads, cpu, compile_only=True)
        self._emulator = emulator

    def upload(self, array: NDArray[Any], element: str = "") -> Any:
        kind = ELEMENTS[element or array.dtype.name]
        return HostArray(np.array(array).view(BITS[kind]), kind)

    def _resident(self, shape: Sequence[int], dtype: str, bits: np.dtype[Any], size: int) -> DeviceBuffer:
        memory = zero_pages(size)
        window = np.frombuffer(memory, bits).reshape(tuple(shape))
        view: Any = HostArray(window.view(BITS[ELEMENTS[dtype]]), ELEMENTS[dtype])
        return DeviceBuffer(view, size, window, memory)

    def download(self, view: Any) -> NDArray[Any]:
        return np.array(view.bits)

    def numbers(self, view: Any) -> list[int]:
        numbers: list[int] = view.bits.tolist()
        return numbers

    def load(self, module: Path, parameters: rt.ParameterIndex | None, scope: str) -> Any:
        threads = [f"--task_topology_group_count={self.threads}"] if self.driver == "local-task" else []
        options = [f"--device={self.driver}", *threads]
        if parameters is not None:
            archive = module.with_suffix(".irpa")
            parameters.create_archive_file(str(archive))
            options.append(f"--parameters={scope}={archive}")
        return EmulatedModule(self._emulator, self.instance, module, options)


class EmulatedModule:
    """A module whose functions are called by `iree-run-module`."""

    def __init__(self, emulator: Emulator, instance: rt.VmInstance, file: Path, options: Sequence[str]) -> None:
        self._emulator = emulator
        self._file = file
        self._options = options
        with file.open("rb") as opened:
            data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        self._module = rt.VmModule.wrap_buffer(instance, data)

    def call(self, name: str, *arguments: Any) -> list[Any]:
        """Run a function. An argument that is updated in place is the result that it shares its buffer with."""
        declaration = self._module.lookup_function(name).reflection["iree.abi.declaration"]
        inputs, _, outputs = declaration.partition("->")
        tied = {
            int(result): int(argument)
            for argument, result in re.findall(r"%input(\d+): [^%]*?\{iree\.abi\.output = (\d+)", inputs)
        }
        with tempfile.TemporaryDirectory() as folder:
            given = [self._input(Path(folder, f"input{i}.bin"), each) for i, each in enumerate(arguments)]
            types = re.findall(r"%output\d+: tensor<([^>]*)>", outputs)
            files = [Path(folder, f"output{i}.bin") for i in range(len(types))]
            made = [f"--output=@{file}" for file in files]
            self._emulator.run(*self._options, f"--module={self._file}", f"--function={name}", *given, *made)
            results = [_read(file, kind) for file, kind in zip(files, types, strict=True)]
        for result, argument in tied.items():
            arguments[argument].bits[...] = results[result].bits
            results[result] = arguments[argument]
        return results

    def _input(self, file: Path, argument: "HostArray | int") -> str:
        if isinstance(argument, int):
            return f"--input={argument}"
        argument.bits.tofile(file)
        return f"--input={argument.described}=@{file}"


def _read(file: Path, kind: str) -> HostArray:
    *shape, element = kind.split("x")
    return HostArray(
        np.fromfile(file, BITS[element]).reshape([-1 if size == "?" else int(size) for size in shape]), element
    )
