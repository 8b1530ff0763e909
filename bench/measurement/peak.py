"""The peak of float32 multiply-adds a second: a kernel that does nothing else, on the engine's own threads."""

import time
from pathlib import Path

import numpy as np

from workers.iree.build.compiler import Compiler
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device
from workers.iree.kernels.ir.arithmetic import arithmetic_of
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.operations import fma
from workers.iree.kernels.ir.value import Value

TURNS = 1 << 20
"""Iterations of the loop in a workgroup: some milliseconds."""
SHARES = 4
"""Workgroups for each thread, so that a late thread does not count."""


class Peak:
    """A kernel of independent sums in registers, as many as the engine's matmuls have."""

    def __init__(self, threads: int, cache_dir: Path) -> None:
        """Raises `DeviceError`, `CacheError` and `CompileError`."""
        self._device = Device("local-task", threads)
        compiler = Compiler(cache_dir, self._device.compile_flags(), self._device.compile_target())
        sums, workgroups = arithmetic_of(Cpu.of_host().features, "float32").accumulators, SHARES * threads
        self._module = self._device.load(compiler.compile(_module(sums, workgroups)), None, "")
        # Halves: the sums stay finite, and are never so small that the CPU is slow.
        self._factor = self._device.upload(np.full(LANES, 0.5, np.float32))
        self._count = sums * workgroups * TURNS * LANES

    def measure(self, passes: int = 4) -> float:
        """Multiply-adds a second of all threads together: the fastest pass."""
        return self._count / min(self._once() for _ in range(passes))

    def _once(self) -> float:
        start = time.perf_counter()
        self._module.call("main", self._factor)
        return time.perf_counter() - start

    def close(self) -> None:
        del self._module, self._factor
        self._device.close()


def _module(sums: int, workgroups: int) -> str:
    """float32 [16] -> float32 [workgroups, sums * 16]: sum = sum * x + x, again and again."""
    kernel = Kernel("peak", workgroups)
    code = kernel.code
    x, out = kernel.input("x", (LANES,), "f32"), kernel.output("out", (workgroups, sums * LANES), "f32")
    factor = x.load_vector([0])

    def turn(_: Value, totals: list[Value]) -> list[Value]:
        return [fma(total, factor, factor) for total in totals]

    # Each starts with another value: equal sums would be computed once.
    starts = [code.floats(float(number)) for number in range(sums)]
    totals = code.loop(0, TURNS, starts, turn)
    for number, total in enumerate(totals):
        out.store(total, [kernel.workgroup, number * LANES])
    shape = f"tensor<{workgroups}x{sums * LANES}xf32>"
    return f"""module @peak {{ {kernel.function()}
  func.func public @main(%x: tensor<{LANES}xf32>) -> {shape} {{
    %r = func.call @peak(%x) : (tensor<{LANES}xf32>) -> {shape}
    return %r : {shape}
  }}
}}"""
