"""Kernels of several phases: each sees all of the one before, whoever does the work and however many there are."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.iree.build.compiler import Compiler
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device, Module
from workers.iree.kernels.ir.fused_kernel import Chain, counters
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.partition import Partition
from workers.iree.kernels.ir.value import Value

ROWS, PHASES, CHAINS, LATE = 40, 4, 3, 7
"""`LATE` are workgroups: more than there are threads, so that some come when all is done."""


def reversing(name: str) -> str:
    """i32 [1], f32 [rows, 16], counters -> the rows in reverse order plus one, once for each phase; the counters."""
    d = Kernel(name, LATE)
    code = d.code
    number, x = d.take((1,), "i32"), d.take((ROWS, LANES), "f32")
    counts, out = d.change((counters(CHAINS, PHASES),), "i32"), d.give((ROWS, LANES), "f32")
    buffers = [x, *(d.between((ROWS, LANES), "f32") for _ in range(PHASES - 1)), out]
    chain = Chain(d, PHASES, counts, number.load_index([0]), Cpu.of_host().pause)

    def work(phase: int, partition: Partition) -> None:
        low, high = partition.even_range(code.index(ROWS))
        source, target = buffers[phase : phase + 2]

        def row(at: Value) -> None:
            target.store(source.load_vector([ROWS - 1 - at, 0]) + 1.0, [at, 0])

        code.repeat(low, high, row)

    for phase, partitions in enumerate((5, 1, ROWS, 14)):
        chain.phase(partitions, functools.partial(work, phase))
    return chain.end()


@pytest.fixture(params=["local-sync", "local-task"])
def module(request: pytest.FixtureRequest, cache_dir: Path) -> tuple[Device, Module]:
    """Three chains, one after the other, that partition their counters."""
    device = Device(request.param, 2)
    kind, count = f"tensor<{ROWS}x{LANES}xf32>", counters(CHAINS, PHASES)
    calls = []
    for i in range(CHAINS):
        x, counts = ("%x", "%zeros") if i == 0 else (f"%r{i - 1}#0", f"%r{i - 1}#1")
        calls.append(f"%n{i} = arith.constant dense<{i}> : tensor<1xi32>")
        types = f"(tensor<1xi32>, {kind}, tensor<{count}xi32>) -> ({kind}, tensor<{count}xi32>)"
        calls.append(f"%r{i}:2 = func.call @reversing(%n{i}, {x}, {counts}) : {types}")
    text = f"""module @chains {{
      {reversing("reversing")}
      func.func public @main(%x: {kind}) -> ({kind}, tensor<{count}xi32>) {{
        %zeros = arith.constant dense<0> : tensor<{count}xi32>
        {" ".join(calls)}
        return %r{CHAINS - 1}#0, %r{CHAINS - 1}#1 : {kind}, tensor<{count}xi32>
      }}
    }}"""
    compiler = Compiler(cache_dir, device.compile_flags(), device.compile_target())
    return device, device.load(compiler.compile(text), None, "")


def test_a_phase_without_counters_is_refused() -> None:
    """It would count where the next chain does."""
    d = Kernel("full", 1)
    chain = Chain(d, 1, d.change((counters(1, 1),), "i32"), d.code.index(0), "")
    chain.phase(1, lambda partition: None)
    with pytest.raises(ValueError, match="a chain of 1 phases has no room for another one"):
        chain.phase(1, lambda partition: None)


def test_phases_follow_each_other(module: tuple[Device, Module]) -> None:
    device, chains = module
    x: NDArray[Any] = np.arange(ROWS * LANES, dtype=np.float32).reshape(ROWS, LANES)
    for _ in range(50):
        out, counts = (device.download(each) for each in chains.call("main", device.upload(x)))
        np.testing.assert_array_equal(out, x + PHASES * CHAINS)
        done = counts.reshape(CHAINS, PHASES, 2, -1)[:, :, 1, 0]
        np.testing.assert_array_equal(done, [[5, 1, ROWS, 14]] * CHAINS)
        x = out
