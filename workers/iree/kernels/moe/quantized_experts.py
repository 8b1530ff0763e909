"""The products of a mixture of experts with quantized weights: those of `quantized_tile` for the pairs of one expert.

Rows are quantized as for any other product, so a pair's sums are what the expert's matrix alone would give.
"""

from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.arithmetic import Arithmetic, row_stride
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.activation_quantization import ActivationQuantization
from workers.iree.kernels.matmul.integer_dots import IntegerDots
from workers.iree.kernels.matmul.packing import Packing
from workers.iree.kernels.matmul.quantized_matmul import QuantizedMatmul, QuantizedOperands
from workers.iree.kernels.matmul.quantized_tile import (
    Prefetches,
    prefetch_ahead,
    quantized_gemm_tile,
)
from workers.iree.kernels.moe.experts import ExpertPartition
from workers.iree.kernels.moe.routing import Mixture
from workers.iree.kernels.rowwise.activations import gated_unit


@dataclass(frozen=True, slots=True)
class QuantizedExperts:
    """One of a mixture's two quantized matrices, and the rows that it is multiplied by."""

    mixture: Mixture
    activations: ActivationQuantization
    packing: Packing
    integer_dots: IntegerDots
    threads: int

    def product(self, outputs: int) -> QuantizedMatmul:
        """`outputs` are those of one expert."""
        whole = outputs * self.mixture.experts.count
        return QuantizedMatmul(self.activations, whole, self.packing, self.integer_dots, self.threads)

    def partition(self, tiles: int, kinds: int) -> ExpertPartition:
        """`kinds` tiles are read for each of `tiles`."""
        size = kinds * self.packing.tile_bytes(self.activations.inputs)
        return ExpertPartition.of(self.mixture, tiles, size, self.threads)


def quantized_experts_up(name: str, e: QuantizedExperts, arithmetic: Arithmetic, activation: Activation) -> str:
    """Levels and scales of the step's rows, weights int8 [count * 2 * ffn / 16, bytes], what `routing.group` gives
    (, biases f32 [count * 2 * ffn]) -> the GLU of each pair, packed words [pairs, row_stride] of width ffn.
    """
    m, ffn = e.mixture, e.mixture.experts.ffn
    matmul, partition, words = e.product(2 * ffn), e.partition(m.up_tiles, kinds=2), LANES // arithmetic.per_word
    kernel = Kernel(name, partition.workgroups)
    operands = QuantizedOperands.of(matmul, kernel)
    lists, bias = m.take_lists(kernel), m.take_bias(kernel, 2 * ffn)
    out = kernel.output("out", (m.pairs, row_stride(ffn, arithmetic)), "i32")

    def write(expert: Value, pairs: list[Value], first: Value, _: int) -> None:
        rows = [pair // m.experts.per_token for pair in pairs]
        gate = expert * (2 * m.up_tiles) + first
        sums = _gate_and_up(kernel.code, matmul, operands, rows, gate, m.up_tiles)
        for pair, (gates, ups) in zip(pairs, sums, strict=True):
            if bias is not None:
                column = expert * (2 * ffn) + first * LANES
                gates, ups = gates + bias.load_vector([column]), ups + bias.load_vector([column + ffn])
            value = gated_unit(activation, gates, ups)
            out.store(arithmetic.pack(value), [pair, first * words])

    partition.each_tile(kernel, lists, partition.pair_blocks(matmul.max_height), lambda _: 1, write)
    return kernel.function()


def quantized_experts_down(name: str, e: QuantizedExperts) -> str:
    """Levels and scales of the pairs, weights int8 [count * hidden / 16, bytes], what `routing.group` gives
    (, biases f32 [count * hidden]) -> f32 [pairs, hidden].
    """
    m = e.mixture
    matmul, partition = e.product(m.hidden), e.partition(m.down_tiles, kinds=1)
    kernel = Kernel(name, partition.workgroups)
    operands = QuantizedOperands.of(matmul, kernel)
    lists, bias = m.take_lists(kernel), m.take_bias(kernel, m.hidden)
    out = kernel.output("out", (m.pairs, m.hidden), "f32")

    def write(expert: Value, pairs: list[Value], first: Value, _: int) -> None:
        at = expert * m.down_tiles + first

        def soon(group: Value) -> Prefetches:
            return prefetch_ahead(matmul, operands, at, at + 1, group)

        sums = quantized_gemm_tile(kernel.code, matmul, operands, [at], pairs, soon)
        for pair, (total,) in zip(pairs, sums, strict=True):
            if bias is not None:
                total = total + bias.load_vector([expert * m.hidden + first * LANES])
            out.store(total, [pair, first * LANES])

    partition.each_tile(kernel, lists, partition.pair_blocks(matmul.max_height), lambda _: 1, write)
    return kernel.function()


def _gate_and_up(
    code: Code, matmul: QuantizedMatmul, operands: QuantizedOperands, rows: list[Value], gate: Value, apart: int
) -> list[tuple[Value, Value]]:
    """Return both sums of each row: of the tile `gate` and of the one `apart` tiles further on, one after the other."""

    def half(which: Value, before: list[Value]) -> list[Value]:
        tile = gate + which * apart
        # The other half is read next, and then the next gate.
        following = gate + which.equals(0).select(code.index(apart), 1)

        def soon(group: Value) -> Prefetches:
            return prefetch_ahead(matmul, operands, tile, following, group)

        sums = quantized_gemm_tile(code, matmul, operands, [tile], rows, soon)
        return [each for row, (total,) in enumerate(sums) for each in (before[2 * row + 1], total)]

    sums = code.loop(0, 2, [code.floats(0.0)] * (2 * len(rows)), half)
    return list(zip(sums[::2], sums[1::2], strict=True))
