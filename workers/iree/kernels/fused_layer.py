"""A dense layer as one fused kernel, for decode steps of a few rows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.attention.attention import (
    allocate_state,
    write_attention,
    write_merged_attention,
    write_split_attention,
)
from workers.iree.kernels.attention.item import AttentionInputs
from workers.iree.kernels.attention.rope_and_cache import RopeAndCache, RopeAndCacheItem
from workers.iree.kernels.attention.shape import Attention
from workers.iree.kernels.ir.arithmetic import stride
from workers.iree.kernels.ir.fused_kernel import FusedKernel, barrier_counters
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.partition import Partition
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.activation_quantization import ROUND_GROUP, Rounding, rounded_rows
from workers.iree.kernels.matmul.linear import add_gated, add_linear
from workers.iree.kernels.matmul.packing import Packing
from workers.iree.kernels.matmul.quantized_linear import add_product
from workers.iree.kernels.matmul.quantized_product import Dot, Factors, Product
from workers.iree.kernels.matmul.row_blocks import live_rows
from workers.iree.kernels.matmul.tiling import GemmTiling
from workers.iree.kernels.rowwise.glu import Gate
from workers.iree.kernels.rowwise.norm import Norm, Normed

MAX_STAGES = 12
"""Stages that a layer may have."""


@dataclass(frozen=True, slots=True)
class LayerPackings:
    """How the matrices of a layer are stored: of few bits, or None, plainly."""

    of: Sequence[Packing | None] = (None, None, None, None)
    """Those of qkv, o, gate_up and down."""
    dot: Dot = "plain"
    planes: int = 1
    """Of what they are multiplied by: see `rounding.Rounded`."""

    @property
    def name(self) -> str:
        """For names of kernels; empty where all are plain."""
        return "".join(f"_{packing.name if packing else 'plain'}" for packing in self.of) if any(self.of) else ""


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """The sizes of a layer, and which of its weights there are."""

    rope_and_cache: RopeAndCache
    attention: Attention
    hidden: int
    ffn: int
    eps: float
    activation: Activation
    biases: tuple[bool, bool]
    """Of the products before and after attention."""
    norms: tuple[Norm, Norm]
    """After attention, and after the MLP."""
    live: bool
    packings: LayerPackings = LayerPackings()
    pause: str = ""
    """See `FusedKernel`."""

    @property
    def rows(self) -> int:
        return self.rope_and_cache.shape.batch * self.rope_and_cache.shape.tokens

    @property
    def barrier_counters(self) -> int:
        """Of a graph with all layers."""
        return barrier_counters(self.rope_and_cache.shape.layers, MAX_STAGES)


def fused_layer(name: str, kind: FusedLayer) -> str:
    """Words [rows, stride] of width hidden, x f32 [rows, hidden] (, live int32 [1]), the weights of queries, keys and
    values (, their bias), what `rope_and_cache` takes from the angles on, the weights of o (, its bias), those of the
    norm that follows, of gate and up, of down, those of the last norm; the counters
    -> x after both additions, its norm as words [rows, stride], the cache, the counters.
    """
    return _Body(name, kind).text()


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix among the operands."""

    inputs: int
    packing: Packing | None
    weights: Memory
    bias: Memory | None


@dataclass(frozen=True, slots=True)
class _Left:
    """What a matrix is multiplied by: words [rows, stride], and what they are rounded to where it has few bits."""

    words: Memory
    rounding: Rounding | None


class _Body:
    """The operands and the stages of the kernel."""

    def __init__(self, name: str, kind: FusedLayer) -> None:
        self._kind, shape = kind, kind.rope_and_cache.shape
        qkv, o, up, down = kind.packings.of
        self._arithmetic, self._threads = kind.rope_and_cache.arithmetic, kind.attention.threads
        self._d = d = Kernel(name, self._threads)
        self._mixed_width = shape.query_heads * shape.head_dim
        width = self._mixed_width + 2 * shape.kv_heads * shape.head_dim
        self._h, self._x = d.take(self._words(kind.hidden), "i32"), d.take((kind.rows, kind.hidden), "f32")
        self._live = d.take((1,), "i32") if kind.live else None
        self._qkv = self._matrix(width, kind.hidden, qkv, kind.biases[0])
        self._heads = d.between((kind.rows, width), "f32")
        queries = d.between((kind.rows, self._mixed_width // self._arithmetic.per_word), "i32")
        self._rope = RopeAndCacheItem(kind.rope_and_cache, d, self._heads, queries)
        self._o = self._matrix(kind.hidden, self._mixed_width, o, kind.biases[1])
        self._after_attention = self._norm_weights(kind.norms[0])
        self._up = self._matrix(2 * kind.ffn, kind.hidden, up)
        self._down = self._matrix(kind.hidden, kind.ffn, down)
        self._after_mlp = self._norm_weights(kind.norms[1])
        counts = d.change((kind.barrier_counters,), "i32")
        self._rows = d.code.index(kind.rows) if self._live is None else live_rows(self._live, kind.rows)
        number = self._rope.layer.load_index([0])
        self._state = None if kind.attention.split else allocate_state(d.code, kind.attention)
        self._fused = FusedKernel(d, MAX_STAGES, counts, number, kind.pause)

    def _words(self, width: int) -> tuple[int, int]:
        return (self._kind.rows, stride(width, self._arithmetic))

    def _matrix(self, outputs: int, inputs: int, packing: Packing | None, bias: bool = False) -> _Matrix:
        shape, element = (outputs // LANES, inputs * LANES), self._arithmetic.element
        if packing is not None:
            shape, element = packing.stored_shape(outputs, inputs), "i8"
        weights = self._d.take(shape, element)
        return _Matrix(inputs, packing, weights, self._d.take((outputs,), "f32") if bias else None)

    def _norm_weights(self, norm: Norm) -> tuple[Memory | None, Memory | None]:
        after, before = (
            self._d.take((self._kind.hidden,), "f32") if there else None for there in (norm.after, norm.before)
        )
        return after, before

    def _left(self, matrix: _Matrix, words: Memory | None = None) -> _Left:
        """What a matrix will be multiplied by."""
        words = words or self._d.between(self._words(matrix.inputs), "i32")
        if matrix.packing is None:
            return _Left(words, None)
        planes = self._kind.packings.planes
        kind = rounded_rows(self._kind.rows, matrix.inputs, matrix.packing, self._arithmetic, planes)
        levels, sums = self._d.between(kind.levels_shape, "i32"), self._d.between(kind.sums_shape, "f32")
        return _Left(words, Rounding(kind, words, levels, sums))

    def text(self) -> str:
        """All stages."""
        kind, d = self._kind, self._d
        floats = (kind.rows, kind.hidden)
        begun = self._left(self._qkv, self._h)
        mixed, normed, gated = (self._left(matrix) for matrix in (self._o, self._up, self._down))
        delta, between = (d.between(floats, "f32") for _ in range(2))
        total, out = d.give(floats, "f32"), d.give(self._words(kind.hidden), "i32")

        self._round(begun.rounding)
        self._product(begun, self._qkv, self._heads)
        self._attention(mixed.words)
        self._round(mixed.rounding)
        self._product(mixed, self._o, delta)
        self._norm(Normed(self._x, delta, *self._after_attention, between, normed.words), normed.rounding)
        self._gated(normed, gated)
        self._product(gated, self._down, delta)
        self._norm(Normed(between, delta, *self._after_mlp, total, out), None)
        return self._fused.function()

    def _product(self, left: _Left, matrix: _Matrix, out: Memory) -> None:
        code, live, words, weights = self._d.code, self._live, left.words, matrix.weights
        if left.rounding is None or matrix.packing is None:
            tiling = GemmTiling(self._kind.rows, weights.shape[0], matrix.inputs, self._arithmetic, 1, self._kind.live)
            partitions = tiling.partitions(self._threads)
            self._fused.stage(
                partitions,
                lambda part: add_linear(code, part, tiling, words, weights, out, matrix.bias, live),
            )
            return
        rounding, dot = left.rounding, self._kind.packings.dot
        p = Product(rounding.kind, out.shape[-1], matrix.packing, dot, self._threads)
        factors = Factors(rounding.levels, rounding.sums, weights)
        self._fused.stage(p.workgroups, lambda part: add_product(code, part, p, factors, out, matrix.bias, live))

    def _gated(self, left: _Left, out: _Left) -> None:
        kind, code, live = self._kind, self._d.code, self._live
        if left.rounding is None:
            tiling = GemmTiling(kind.rows, kind.ffn // LANES, kind.hidden, self._arithmetic, 2, kind.live)

            def work(partition: Partition) -> None:
                add_gated(code, partition, tiling, left.words, self._up.weights, out.words, kind.activation, live)

            self._fused.stage(tiling.partitions(self._threads), work)
            self._round(out.rounding)
            return
        halves = self._d.between((kind.rows, 2 * kind.ffn), "f32")
        self._product(left, self._up, halves)
        gate, rounding = Gate(halves, out.words, self._arithmetic, kind.activation), out.rounding
        size = math.gcd(kind.ffn, ROUND_GROUP) if rounding is None else rounding.kind.group

        def part(row: Value, number: Value) -> None:
            low = number * size
            gate.columns(code, row, low, low + size)
            if rounding is not None:
                rounding.group(code, row, number)

        self._each_part(kind.ffn // size, part)

    def _round(self, rounding: Rounding | None) -> None:
        if rounding is not None:
            code = self._d.code
            self._each_part(rounding.kind.groups, lambda row, number: rounding.group(code, row, number))

    def _each_part(self, parts: int, work: Callable[[Value, Value], None]) -> None:
        """A stage: `work` for every live row and each of its parts."""
        self._each(parts, 2 * self._threads, lambda item: work(item // parts, item % parts))

    def _each(self, parts: int, most: int, work: Callable[[Value], None]) -> None:
        """A stage: `work` for each item of the live rows, so many of a row after those of the row before, in `most`
        partitions or fewer. What nobody reads of the other rows stays what it is."""

        def some(partition: Partition) -> None:
            low, high = partition.even_range(self._rows * parts)
            self._d.code.repeat(low, high, work)

        self._fused.stage(min(self._kind.rows * parts, most), some)

    def _norm(self, normed: Normed, rounding: Rounding | None) -> None:
        code = self._d.code

        def row(number: Value) -> None:
            normed.row(code, number, self._kind.eps, self._arithmetic)
            if rounding is not None:
                rounding.row(code, number)

        self._each(1, self._threads, row)

    def _attention(self, out: Memory) -> None:
        """Norms of heads, rotation, writing to the cache; then attention."""
        kind, code, rope = self._kind.attention, self._d.code, self._rope
        self._each(self._kind.rope_and_cache.shape.kv_heads, 2 * self._threads, rope.write)
        inputs = AttentionInputs(rope.queries, rope.slots, rope.rows, rope.layer, rope.cache)
        state, live = self._state, self._rows
        if state is not None:
            self._fused.stage(kind.partitions, lambda part: write_attention(code, part, kind, inputs, out, state, live))
            return
        partials = self._d.between(kind.partials_shape, "f32")
        self._fused.stage(
            kind.split_partitions, lambda part: write_split_attention(code, part, kind, inputs, partials, live)
        )
        self._fused.stage(
            kind.merge_partitions, lambda part: write_merged_attention(code, part, kind, partials, rope.rows, out, live)
        )
