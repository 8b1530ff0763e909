"""Fused kernels: each stage sees all of the one before, whichever threads do the work and however many there are."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.iree.build.compiler import Compiler
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device, Module
from workers.iree.kernels.ir.fused_kernel import FusedKernel, barrier_counters
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.partition import Partition
from workers.iree.kernels.ir.value import Value

ROWS, STAGES, KERNELS, LATE = 40, 4, 3, 7
"""`LATE` are workgroups: more than there are threads, so that some come when all is done."""


def reversing(name: str, pause: str) -> str:
    """i32 [1], f32 [rows, 16], counters -> the rows in reverse order plus one, once for each stage; the counters."""
    kernel = Kernel(name, LATE)
    code = kernel.code
    number, x = kernel.input("number", (1,), "i32"), kernel.input("x", (ROWS, LANES), "f32")
    counts = kernel.in_place("counts", (barrier_counters(KERNELS, STAGES),), "i32")
    out = kernel.output("out", (ROWS, LANES), "f32")
    buffers = [x, *(kernel.scratch((ROWS, LANES), "f32") for _ in range(STAGES - 1)), out]
    fused = FusedKernel(kernel, STAGES, counts, number.load_index([0]), pause)

    def work(stage: int, partition: Partition) -> None:
        low, high = partition.even_range(code.index(ROWS))
        source, target = buffers[stage : stage + 2]

        def row(at: Value) -> None:
            target.store(source.load_vector([ROWS - 1 - at, 0]) + 1.0, [at, 0])

        code.repeat(low, high, row)

    for stage, partitions in enumerate((5, 1, ROWS, 14)):
        fused.stage(partitions, functools.partial(work, stage))
    return fused.function()


@pytest.fixture(params=["local-sync", "local-task"])
def module(request: pytest.FixtureRequest, cache_dir: Path) -> tuple[Device, Module]:
    """Three kernels, one after the other, that share their counters."""
    device = Device(request.param, 2)
    kind, count = f"tensor<{ROWS}x{LANES}xf32>", barrier_counters(KERNELS, STAGES)
    calls = []
    for i in range(KERNELS):
        x, counts = ("%x", "%zeros") if i == 0 else (f"%r{i - 1}#0", f"%r{i - 1}#1")
        calls.append(f"%n{i} = arith.constant dense<{i}> : tensor<1xi32>")
        types = f"(tensor<1xi32>, {kind}, tensor<{count}xi32>) -> ({kind}, tensor<{count}xi32>)"
        calls.append(f"%r{i}:2 = func.call @reversing(%n{i}, {x}, {counts}) : {types}")
    text = f"""module @kernels {{
      {reversing("reversing", Cpu.of_host().pause)}
      func.func public @main(%x: {kind}) -> ({kind}, tensor<{count}xi32>) {{
        %zeros = arith.constant dense<0> : tensor<{count}xi32>
        {" ".join(calls)}
        return %r{KERNELS - 1}#0, %r{KERNELS - 1}#1 : {kind}, tensor<{count}xi32>
      }}
    }}"""
    compiler = Compiler(cache_dir, device.compile_flags(), device.compile_target())
    return device, device.load(compiler.compile(text), None, "")


def test_a_stage_without_counters_is_refused() -> None:
    """It would use those of the next kernel."""
    kernel = Kernel("full", 1)
    fused = FusedKernel(
        kernel, 1, kernel.in_place("counts", (barrier_counters(1, 1),), "i32"), kernel.code.index(0), ""
    )
    fused.stage(1, lambda partition: None)
    with pytest.raises(ValueError, match="a fused kernel of 1 stages has no room for another one"):
        fused.stage(1, lambda partition: None)


def test_stages_follow_each_other(module: tuple[Device, Module]) -> None:
    device, kernels = module
    x: NDArray[Any] = np.arange(ROWS * LANES, dtype=np.float32).reshape(ROWS, LANES)
    for _ in range(50):
        out, counts = (device.download(each) for each in kernels.call("main", device.upload(x)))
        np.testing.assert_array_equal(out, x + STAGES * KERNELS)
        done = counts.reshape(KERNELS, STAGES, 2, -1)[:, :, 1, 0]
        np.testing.assert_array_equal(done, [[5, 1, ROWS, 14]] * KERNELS)
        x = out
