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
from workers.iree.kernels.ir.arithmetic import row_stride
from workers.iree.kernels.ir.fused_kernel import FusedKernel, barrier_counters
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.live_rows import live_rows
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.partition import Partition
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.activation_quantization import MAX_GROUP, ActivationQuantization, ActivationQuantizer
from workers.iree.kernels.matmul.integer_dots import PLAIN_DOTS, IntegerDots
from workers.iree.kernels.matmul.linear import write_glu_linear, write_linear
from workers.iree.kernels.matmul.packing import Packing
from workers.iree.kernels.matmul.quantized_linear import write_quantized_linear
from workers.iree.kernels.matmul.quantized_matmul import QuantizedMatmul, QuantizedOperands
from workers.iree.kernels.matmul.tiling import GemmTiling
from workers.iree.kernels.rowwise.glu import Glu
from workers.iree.kernels.rowwise.norm import Norm, NormOperands

MAX_STAGES = 12
"""Stages that a layer may have."""


@dataclass(frozen=True, slots=True)
class LayerPackings:
    """The packings of a layer's quantized matrices; None for a matrix in the model's type."""

    of: Sequence[Packing | None] = (None, None, None, None)
    """Those of qkv, o, gate_up and down."""
    integer_dots: IntegerDots = PLAIN_DOTS
    limbs: int = 1
    """Limbs of the activations that quantized matrices are multiplied by: see `ActivationQuantization`."""

    @property
    def name(self) -> str:
        """A part of the kernel's name; empty where no matrix is quantized."""
        return "".join(f"_{packing.name if packing else 'plain'}" for packing in self.of) if any(self.of) else ""


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """The sizes of a layer, and the weights that it has."""

    rope_and_cache: RopeAndCache
    attention: Attention
    hidden: int
    ffn: int
    eps: float
    activation: Activation
    biases: tuple[bool, bool]
    """Biases of the products before and after attention."""
    norms: tuple[Norm, Norm]
    """After attention, and after the MLP."""
    live: bool
    """Only live rows are computed."""
    packings: LayerPackings = LayerPackings()
    pause: str = ""
    """See `FusedKernel`."""

    @property
    def rows(self) -> int:
        return self.attention.shape.batch * self.attention.shape.tokens

    @property
    def barrier_counters(self) -> int:
        """Counters of a graph with all layers."""
        return barrier_counters(self.attention.shape.layers, MAX_STAGES)


def fused_layer(name: str, kind: FusedLayer) -> str:
    """Packed words [rows, row_stride] of width hidden, x f32 [rows, hidden] (, live int32 [1]), the weights of queries,
    keys and values (, their bias), what `rope_and_cache` takes from the angles on, the weights of o (, its bias), those
    of the norm that follows, of gate and up, of down, those of the last norm; the barrier counters
    -> x after both additions, its norm as packed words [rows, row_stride], the cache, the counters.
    """
    return _LayerKernel(name, kind).function()


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix among the operands."""

    inputs: int
    packing: Packing | None
    weights: Memory
    bias: Memory | None


@dataclass(frozen=True, slots=True)
class _Left:
    """The left operand of a matrix: packed words [rows, row_stride], and their quantizer if the matrix is quantized."""

    words: Memory
    quantizer: ActivationQuantizer | None


class _LayerKernel:
    """The operands and the stages of the kernel."""

    def __init__(self, name: str, kind: FusedLayer) -> None:
        self._kind, shape = kind, kind.attention.shape
        qkv, o, up, down = kind.packings.of
        self._arithmetic, self._threads = kind.attention.arithmetic, kind.attention.threads
        self._kernel = kernel = Kernel(name, self._threads)
        self._mixed_width = shape.query_heads * shape.value_dim
        self._h = kernel.input("h", self._words(kind.hidden), "i32")
        self._x = kernel.input("x", (kind.rows, kind.hidden), "f32")
        self._live = kernel.input("live", (1,), "i32") if kind.live else None
        self._qkv = self._matrix("qkv", shape.qkv_width, kind.hidden, qkv, kind.biases[0])
        self._heads = kernel.scratch((kind.rows, shape.qkv_width), "f32")
        query_words = shape.query_heads * shape.head_dim // self._arithmetic.per_word
        queries = kernel.scratch((kind.rows, query_words), "i32")
        self._rope = RopeAndCacheItem(kind.rope_and_cache, kernel, self._heads, queries)
        self._o = self._matrix("o", kind.hidden, self._mixed_width, o, kind.biases[1])
        self._after_attention = self._norm_weights(kind.norms[0], "after_attention", "before_mlp")
        self._up = self._matrix("gate_up", 2 * kind.ffn, kind.hidden, up)
        self._down = self._matrix("down", kind.hidden, kind.ffn, down)
        self._after_mlp = self._norm_weights(kind.norms[1], "after_mlp", "following")
        counters = kernel.in_place("counters", (kind.barrier_counters,), "i32")
        self._rows = kernel.code.index(kind.rows) if self._live is None else live_rows(self._live, kind.rows)
        number = self._rope.layer.load_index([0])
        self._state = None if kind.attention.split else allocate_state(kernel.code, kind.attention)
        self._fused = FusedKernel(kernel, MAX_STAGES, counters, number, kind.pause)

    def _words(self, width: int) -> tuple[int, int]:
        return (self._kind.rows, row_stride(width, self._arithmetic))

    def _matrix(self, name: str, outputs: int, inputs: int, packing: Packing | None, bias: bool = False) -> _Matrix:
        shape, element = (outputs // LANES, inputs * LANES), self._arithmetic.element
        if packing is not None:
            shape, element = packing.stored_shape(outputs, inputs), "i8"
        weights = self._kernel.input(name, shape, element)
        offsets = self._kernel.input(f"{name}_bias", (outputs,), "f32") if bias else None
        return _Matrix(inputs, packing, weights, offsets)

    def _norm_weights(self, norm: Norm, *names: str) -> tuple[Memory | None, Memory | None]:
        after, before = (
            self._kernel.input(name, (self._kind.hidden,), "f32") if there else None
            for name, there in zip(names, (norm.after, norm.before), strict=True)
        )
        return after, before

    def _left(self, matrix: _Matrix, words: Memory | None = None) -> _Left:
        """Return the memory of what a matrix will be multiplied by."""
        words = words or self._kernel.scratch(self._words(matrix.inputs), "i32")
        if matrix.packing is None:
            return _Left(words, None)
        rows, limbs, dots = self._kind.rows, self._kind.packings.limbs, self._kind.packings.integer_dots
        kind = ActivationQuantization.of(rows, matrix.inputs, matrix.packing, self._arithmetic, limbs, dots)
        levels, scales = self._kernel.scratch(kind.levels_shape, "i32"), self._kernel.scratch(kind.scales_shape, "f32")
        return _Left(words, ActivationQuantizer(kind, words, levels, scales))

    def function(self) -> str:
        """Add all stages and return the kernel's text."""
        kind, kernel = self._kind, self._kernel
        floats = (kind.rows, kind.hidden)
        begun = self._left(self._qkv, self._h)
        mixed, normed, gated = (self._left(matrix) for matrix in (self._o, self._up, self._down))
        delta, between = (kernel.scratch(floats, "f32") for _ in range(2))
        total = kernel.output("x", floats, "f32")
        out = kernel.output("h", self._words(kind.hidden), "i32")

        self._quantize(begun.quantizer)
        self._linear(begun, self._qkv, self._heads)
        self._attention(mixed.words)
        self._quantize(mixed.quantizer)
        self._linear(mixed, self._o, delta)
        after_attention, after_mlp = ((norm.multiplier, norm.values) for norm in kind.norms)
        attended = NormOperands(self._x, delta, *self._after_attention, between, normed.words, *after_attention)
        self._norm(attended, normed.quantizer)
        self._glu(normed, gated)
        self._linear(gated, self._down, delta)
        self._norm(NormOperands(between, delta, *self._after_mlp, total, out, *after_mlp), None)
        return self._fused.function()

    def _linear(self, left: _Left, matrix: _Matrix, out: Memory) -> None:
        code, live, words, weights, bias = self._kernel.code, self._live, left.words, matrix.weights, matrix.bias
        if left.quantizer is None or matrix.packing is None:
            tiling = GemmTiling(self._kind.rows, weights.shape[0], matrix.inputs, self._arithmetic, 1, self._kind.live)
            self._fused.stage(
                tiling.partitions(self._threads),
                lambda part: write_linear(code, part, tiling, words, weights, out, bias, live),
            )
            return
        quantizer, dots = left.quantizer, self._kind.packings.integer_dots
        matmul = QuantizedMatmul(quantizer.kind, out.shape[-1], matrix.packing, dots, self._threads)
        operands = QuantizedOperands(quantizer.levels, quantizer.scales, weights)
        self._fused.stage(
            matmul.workgroups, lambda part: write_quantized_linear(code, part, matmul, operands, out, bias, live)
        )

    def _glu(self, left: _Left, out: _Left) -> None:
        """Stages: the products of gate and up, and act(gate) * up, quantized where `down` is."""
        kind, code, live = self._kind, self._kernel.code, self._live
        if left.quantizer is None:
            tiling = GemmTiling(kind.rows, kind.ffn // LANES, kind.hidden, self._arithmetic, 2, kind.live)

            def work(part: Partition) -> None:
                write_glu_linear(code, part, tiling, left.words, self._up.weights, out.words, kind.activation, live)

            self._fused.stage(tiling.partitions(self._threads), work)
            self._quantize(out.quantizer)
            return
        halves = self._kernel.scratch((kind.rows, 2 * kind.ffn), "f32")
        self._linear(left, self._up, halves)
        glu, quantizer = Glu(halves, out.words, self._arithmetic, kind.activation), out.quantizer
        size = math.gcd(kind.ffn, MAX_GROUP) if quantizer is None else quantizer.kind.group

        def group(row: Value, number: Value) -> None:
            low = number * size
            glu.columns(code, row, low, low + size)
            if quantizer is not None:
                quantizer.group(code, row, number)

        self._each_group(kind.ffn // size, group)

    def _quantize(self, quantizer: ActivationQuantizer | None) -> None:
        """A stage that quantizes the rows, where there is a quantizer."""
        if quantizer is not None:
            code = self._kernel.code
            self._each_group(quantizer.kind.groups, lambda row, number: quantizer.group(code, row, number))

    def _each_group(self, groups: int, work: Callable[[Value, Value], None]) -> None:
        """A stage that does `work` for every live row and each of its groups."""
        self._each(groups, 2 * self._threads, lambda item: work(item // groups, item % groups))

    def _each(self, items: int, most: int, work: Callable[[Value], None]) -> None:
        """A stage that does `work` for each item of the live rows, `items` of a row after those of the row before, in
        `most` partitions or fewer. Padding rows stay what they are."""

        def some(part: Partition) -> None:
            low, high = part.even_range(self._rows * items)
            self._kernel.code.repeat(low, high, work)

        self._fused.stage(min(self._kind.rows * items, most), some)

    def _norm(self, normed: NormOperands, quantizer: ActivationQuantizer | None) -> None:
        """A stage that norms the rows, and quantizes them where there is a quantizer."""
        code = self._kernel.code

        def row(number: Value) -> None:
            normed.row(code, number, self._kind.eps, self._arithmetic)
            if quantizer is not None:
                quantizer.row(code, number)

        self._each(1, self._threads, row)

    def _attention(self, out: Memory) -> None:
        """Stages: norms of heads, rotation and writing to the cache; then attention."""
        kind, code, rope = self._kind.attention, self._kernel.code, self._rope
        self._each(kind.shape.kv_heads, 2 * self._threads, rope.write)
        assert rope.cache is not None  # a fused layer has keys and values of its own
        inputs = AttentionInputs(rope.queries, rope.slots, rope.rows, rope.layer, rope.cache)
        state, live = self._state, self._rows
        if state is not None:
            self._fused.stage(kind.partitions, lambda part: write_attention(code, part, kind, inputs, out, state, live))
            return
        partials = self._kernel.scratch(kind.partials_shape, "f32")
        self._fused.stage(
            kind.split_partitions, lambda part: write_split_attention(code, part, kind, inputs, partials, live)
        )
        self._fused.stage(
            kind.merge_partitions, lambda part: write_merged_attention(code, part, kind, partials, rope.rows, out, live)
        )
