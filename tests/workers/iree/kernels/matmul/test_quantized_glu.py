"""An MLP of many rows, whose GLU is quantized where it is computed, against one of few rows, which is not fused."""

from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.workers.iree.cpus import skip_unless_possible
from tests.workers.iree.kernels.running import random, words
from workers.checkpoints.low_bits.fp4_layouts import LEVELS
from workers.checkpoints.quantized_matrix import SCALE_TYPES, GroupFormat, Quantized, quantize
from workers.iree.build.compiler import Compiler
from workers.iree.build.lower import Graph, lower_module, struct
from workers.iree.device.device import Device
from workers.iree.kernels.ir.arithmetic import ROW_PADDING, Arithmetic, Bf16Dot, FloatFma, WidenedBf16, row_stride
from workers.iree.kernels.matmul.integer_dots import PLAIN_DOTS, IntegerDots, choose_integer_dots
from workers.iree.kernels.matmul.packing import Packing
from workers.iree.model.packed_matrix import PackedMatrix
from workers.iree.model.tiled_ops import TiledOps

HIDDEN, FFN = 128, 320
MANY, FEW = 136, 8
LIVE = (136, 128, 72, 64, 24, 8)
"""Live rows: those of two chunks that go together and a third, of whole ones, of a part of one, and of one block."""
VNNI = choose_integer_dots({"avx512vnni"})
FORMATS = [
    pytest.param(GroupFormat(8, 64, "middle", "float16"), id="int8"),
    pytest.param(GroupFormat(4, 64, "bias", "float16"), id="int4"),
    pytest.param(GroupFormat(4, 32, "bias", "bfloat16"), id="int4-groups-of-32"),
    pytest.param(GroupFormat(4, 16, "middle", "float32", e2m1=True), id="fp4-groups-of-16"),
]


def packed(format: GroupFormat, outputs: int, inputs: int, seed: int) -> NDArray[np.int8]:
    weights = random(outputs, inputs, seed=seed)
    if not format.e2m1:
        return Packing(format).pack(quantize(weights.astype(np.float64), format))
    codes = weights.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    scales = np.abs(weights[:, :: format.group]).astype(SCALE_TYPES[format.scales])
    return Packing(format).pack(Quantized(format, LEVELS[codes], scales, None))


def graph(ops: TiledOps, format: GroupFormat, rows: int) -> Graph:
    packing = Packing(format)

    def mlp(x: Any, gate_up: Any, down: Any, live: Any, _: Any) -> tuple[Any, ...]:
        up, out = PackedMatrix(gate_up, packing, HIDDEN), PackedMatrix(down, packing, FFN)
        return (ops.mlp(x, up, out, HIDDEN, FFN, "silu", live),)

    matrices = packing.stored_shape(2 * FFN, HIDDEN), packing.stored_shape(HIDDEN, FFN)
    inputs = [((rows, row_stride(HIDDEN, ops.arithmetic)), "int32"), *((each, "int8") for each in matrices)]
    return Graph(f"mlp_{rows}", mlp, tuple(struct(*each) for each in [*inputs, ((1,), "int32")]), pure=True)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("arithmetic", [Bf16Dot(), WidenedBf16(16)], ids=["pairs", "widened"])
def test_rows_are_those_of_separate_kernels(cache_dir: Path, format: GroupFormat, arithmetic: Arithmetic) -> None:
    skip_unless_possible("avx512-vnni")
    ops, device = TiledOps("bfloat16", arithmetic, VNNI, 2), Device("local-task", 2)
    if arithmetic == Bf16Dot() and "avx512bf16" not in device.compile_target():
        pytest.skip("the CPU has no AVX512-BF16")
    graphs = [graph(ops, format, rows) for rows in (MANY, FEW)]
    for each in graphs:
        jax.eval_shape(each.function, *each.inputs, {})
    assert sorted("quantized_glu" in name for name in ops.bodies if "glu" in name) == [False, True]
    compiler = Compiler(cache_dir, device.compile_flags(), device.compile_target())
    module = device.load(compiler.compile(lower_module(graphs, {}, ops.bodies)), None, "")
    matrices = [device.upload(packed(format, *sizes)) for sizes in ((2 * FFN, HIDDEN, 1), (HIDDEN, FFN, 2))]
    x = words(random(MANY, HIDDEN), arithmetic, ROW_PADDING)

    def run(some: NDArray[np.int32], live: int) -> NDArray[np.float32]:
        operands = device.upload(some), *matrices, device.upload(np.array([live], np.int32))
        out: NDArray[np.float32] = device.download(module.call(f"mlp_{len(some)}", *operands)[0])
        return out

    expected = np.concatenate([run(x[first : first + FEW], FEW) for first in range(0, MANY, FEW)])
    assert np.isfinite(expected).all()
    assert expected.any()
    for live in LIVE:
        np.testing.assert_array_equal(run(x, live)[:live], expected[:live])


@pytest.mark.parametrize(
    ("dtype", "arithmetic", "dots", "rows"),
    [
        pytest.param("bfloat16", Bf16Dot(), VNNI, 64, id="few-rows"),
        pytest.param("float32", FloatFma("f32", 16), VNNI, 128, id="three-limbs"),
        pytest.param("bfloat16", WidenedBf16(4), PLAIN_DOTS, 128, id="any-CPU"),
        pytest.param("bfloat16", WidenedBf16(4), choose_integer_dots({"avx2", "avxvnni"}), 128, id="AVX-VNNI"),
    ],
)
def test_what_is_not_fused(dtype: str, arithmetic: Arithmetic, dots: IntegerDots, rows: int) -> None:
    ops = TiledOps(dtype, arithmetic, dots)
    each = graph(ops, GroupFormat(8, 64, "middle", "float16"), rows)
    jax.eval_shape(each.function, *each.inputs, {})
    assert [name for name in ops.bodies if "glu" in name] == [f"baton_glu_{rows}_{FFN}_live"]
