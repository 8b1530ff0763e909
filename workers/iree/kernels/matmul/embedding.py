"""Embeddings of tokens from a packed matrix, whose tiles the head multiplies by when the two are tied."""

from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.mlir_types import ELEMENTS, LANES, Type
from workers.iree.kernels.ir.operations import math_fma
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.fp4 import fp4_levels
from workers.iree.kernels.matmul.packing import DOT_INPUTS, Packing


def embedding(name: str, rows: int, tiles: int, inputs: int, packing: Packing) -> str:
    """Outputs int32 [rows], a packed matrix int8 [tiles, bytes] -> their weights, float32 [rows, inputs].

    An output that the matrix does not have is its last one: nothing is read beyond it.
    """
    kernel = Kernel(name, rows)
    code, row, format = kernel.code, kernel.workgroup, packing.format
    which = kernel.input("tokens", (rows,), "i32")
    weights = kernel.input("weight", packing.stored_shape(tiles * LANES, inputs), "i8")
    out = kernel.output("out", (rows, inputs), "f32")
    output = which.load([row]).minimum(tiles * LANES - 1).astype("index", signed=True)
    tile, lane = output // LANES, output % LANES
    at_lane, scale_at_lane = lane * DOT_INPUTS, lane * format.scale_size
    step = DOT_INPUTS * 8 // format.bits

    def number(at: Value) -> Value:
        """A number of the lane and its group, in every lane of a run."""
        narrow = weights.load_vector([tile, at], format.scale_size).bitcast(ELEMENTS[format.scales])
        return narrow.lane(0).astype("f32").broadcast(DOT_INPUTS)

    def group(at_group: Value) -> None:
        scales = number(packing.entry_byte(0, at_group) + scale_at_lane)
        if format.zero == "middle":
            zeros = code.constant(-format.middle, Type("f32", DOT_INPUTS))
        else:
            zeros = number(packing.entry_byte(1, at_group) + scale_at_lane)
        first, levels_at = at_group * (format.group // step), packing.level_byte(at_group) + at_lane

        def run(offset: Value) -> None:
            column = (first + offset) * step
            bytes_ = weights.load_vector([tile, levels_at + offset * packing.vector_bytes], DOT_INPUTS)
            for part in range(8 // format.bits):
                weight = _weights(packing, bytes_, part, scales, zeros)
                out.store(weight, [row, column + code.index(part * DOT_INPUTS)])

        code.repeat(0, format.group // step, run)

    code.repeat(0, inputs // format.group, group)
    return kernel.function()


def _weights(packing: Packing, levels: Value, part: int, scales: Value, zeros: Value) -> Value:
    """Return the weights of one run: with 4 bits a level, part 0 is the low halves of the bytes and part 1 the high."""
    levels = levels.astype("i32")
    if packing.format.bits == 4:
        levels = (levels >> 4 * part) & 15
    if packing.format.e2m1:
        levels = fp4_levels(levels, every=1)
    floats = levels.astype("f32")
    return math_fma(floats, scales, zeros) if packing.format.zero == "bias" else (floats + zeros) * scales
