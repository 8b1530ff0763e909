"""A dense layer as one kernel of many phases (`chain`), for steps of a few rows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.attention.attention import Attention, Cached
from workers.iree.kernels.attention.rope_and_cache import Place, Placing
from workers.iree.kernels.ir.builder import LANES, Value
from workers.iree.kernels.ir.executable import Kernel
from workers.iree.kernels.ir.fused import Chain, counters
from workers.iree.kernels.ir.partition import Share, share_of
from workers.iree.kernels.matmul.activation_quantization import ROUND_GROUP, Rounding, rounded_rows
from workers.iree.kernels.matmul.glu import Gate
from workers.iree.kernels.matmul.linear import add_gated, add_linear, stride
from workers.iree.kernels.matmul.quantized_linear import add_product
from workers.iree.kernels.matmul.quantized_product import Dot, Factors, Product
from workers.iree.kernels.matmul.row_blocks import live_rows
from workers.iree.kernels.matmul.tiling import Cut
from workers.iree.kernels.norm import Norm, Normed
from workers.iree.model.packing import Packing

PHASES = 12
"""At most."""


@dataclass(frozen=True, slots=True)
class Packings:
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
class Layer:
    """The sizes of a layer, and which of its weights there are."""

    place: Place
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
    packings: Packings = Packings()
    pause: str = ""
    """See `Chain`."""

    @property
    def rows(self) -> int:
        return self.place.heads.batch * self.place.heads.tokens

    @property
    def counters(self) -> int:
        """Of a graph with all layers."""
        return counters(self.place.heads.layers, PHASES)


def layer(name: str, kind: Layer) -> str:
    """Words [rows, stride] of width hidden, x f32 [rows, hidden] (, live int32 [1]), the weights of queries, keys and
    values (, their bias), what `Place.function` takes from the angles on, the weights of o (, its bias), those of the
    norm that follows, of gate and up, of down, those of the last norm; the counters
    -> x after both additions, its norm as words [rows, stride], the cache, the counters.
    """
    return _Layer(name, kind).text()


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix among the operands."""

    inputs: int
    packing: Packing | None
    weights: Value
    bias: Value | None


@dataclass(frozen=True, slots=True)
class _Left:
    """What a matrix is multiplied by: words [rows, stride], and what they are rounded to where it has few bits."""

    words: Value
    rounding: Rounding | None


class _Layer:
    """The operands and the phases of a layer's kernel."""

    def __init__(self, name: str, kind: Layer) -> None:
        self._kind, heads = kind, kind.place.heads
        qkv, o, up, down = kind.packings.of
        self._arithmetic, self._threads = kind.place.arithmetic, kind.attention.threads
        self._d = d = Kernel(name, self._threads)
        self._mixed_width = heads.queries * heads.head_dim
        width = self._mixed_width + 2 * heads.heads * heads.head_dim
        self._h, self._x = d.take(self._words(kind.hidden), "i32"), d.take((kind.rows, kind.hidden), "f32")
        self._live = d.take((1,), "i32") if kind.live else None
        self._qkv = self._matrix(width, kind.hidden, qkv, kind.biases[0])
        self._heads = d.between((kind.rows, width), "f32")
        queries = d.between((kind.rows, self._mixed_width // self._arithmetic.word), "i32")
        self._placing = Placing(kind.place, d, self._heads, queries)
        self._o = self._matrix(kind.hidden, self._mixed_width, o, kind.biases[1])
        self._after_attention = self._norm_weights(kind.norms[0])
        self._up = self._matrix(2 * kind.ffn, kind.hidden, up)
        self._down = self._matrix(kind.hidden, kind.ffn, down)
        self._after_mlp = self._norm_weights(kind.norms[1])
        counts = d.change((kind.counters,), "i32")
        self._rows = d.code.index(kind.rows) if self._live is None else live_rows(d.code, self._live, kind.rows)
        number = d.code.extract_index(self._placing.layer, [d.code.index(0)])
        self._room = None if kind.attention.split else kind.attention.room(d.code)
        self._chain = Chain(d, PHASES, counts, number, kind.pause)

    def _words(self, width: int) -> tuple[int, int]:
        return (self._kind.rows, stride(width, self._arithmetic))

    def _matrix(self, outputs: int, inputs: int, packing: Packing | None, bias: bool = False) -> _Matrix:
        shape, element = (outputs // LANES, inputs * LANES), self._arithmetic.element
        if packing is not None:
            shape, element = packing.stored_shape(outputs, inputs), "i8"
        weights = self._d.take(shape, element)
        return _Matrix(inputs, packing, weights, self._d.take((outputs,), "f32") if bias else None)

    def _norm_weights(self, norm: Norm) -> tuple[Value | None, Value | None]:
        after, before = (
            self._d.take((self._kind.hidden,), "f32") if there else None for there in (norm.after, norm.before)
        )
        return after, before

    def _left(self, matrix: _Matrix, words: Value | None = None) -> _Left:
        """What a matrix will be multiplied by."""
        words = words or self._d.between(self._words(matrix.inputs), "i32")
        if matrix.packing is None:
            return _Left(words, None)
        planes = self._kind.packings.planes
        kind = rounded_rows(self._kind.rows, matrix.inputs, matrix.packing, self._arithmetic, planes)
        levels, sums = self._d.between(kind.levels_shape, "i32"), self._d.between(kind.sums_shape, "f32")
        return _Left(words, Rounding(kind, words, levels, sums))

    def text(self) -> str:
        """All phases."""
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
        of_attention, of_mlp = (norm.multiplier for norm in kind.norms)
        attended = Normed(self._x, delta, *self._after_attention, between, normed.words, of_attention)
        self._norm(attended, normed.rounding)
        self._gated(normed, gated)
        self._product(gated, self._down, delta)
        self._norm(Normed(between, delta, *self._after_mlp, total, out, of_mlp), None)
        return self._chain.end()

    def _product(self, left: _Left, matrix: _Matrix, out: Value) -> None:
        code, live, words, weights = self._d.code, self._live, left.words, matrix.weights
        if left.rounding is None or matrix.packing is None:
            cut = Cut(self._kind.rows, weights.shape[0], matrix.inputs, self._arithmetic, 1, self._kind.live)
            shares = cut.shares(self._threads)
            self._chain.phase(
                shares, lambda share: add_linear(code, share, cut, words, weights, out, matrix.bias, live)
            )
            return
        rounding, dot = left.rounding, self._kind.packings.dot
        p = Product(rounding.kind, out.shape[-1], matrix.packing, dot, self._threads)
        factors = Factors(rounding.levels, rounding.sums, weights)
        self._chain.phase(p.workgroups, lambda share: add_product(code, share, p, factors, out, matrix.bias, live))

    def _gated(self, left: _Left, out: _Left) -> None:
        kind, code, live = self._kind, self._d.code, self._live
        if left.rounding is None:
            cut = Cut(kind.rows, kind.ffn // LANES, kind.hidden, self._arithmetic, 2, kind.live)

            def work(share: Share) -> None:
                add_gated(code, share, cut, left.words, self._up.weights, out.words, kind.activation, live)

            self._chain.phase(cut.shares(self._threads), work)
            self._round(out.rounding)
            return
        halves = self._d.between((kind.rows, 2 * kind.ffn), "f32")
        self._product(left, self._up, halves)
        gate, rounding = Gate(halves, out.words, self._arithmetic, kind.activation), out.rounding
        size = math.gcd(kind.ffn, ROUND_GROUP) if rounding is None else rounding.kind.group

        def part(row: str, number: str) -> None:
            low = code.mul(number, size)
            gate.columns(code, row, low, code.add(low, size))
            if rounding is not None:
                rounding.group(code, row, number)

        self._each_part(kind.ffn // size, part)

    def _round(self, rounding: Rounding | None) -> None:
        if rounding is not None:
            code = self._d.code
            self._each_part(rounding.kind.groups, lambda row, number: rounding.group(code, row, number))

    def _each_part(self, parts: int, work: Callable[[str, str], None]) -> None:
        """A phase: `work` for every live row and each of its parts."""
        code = self._d.code
        self._each(parts, 2 * self._threads, lambda item: work(code.div(item, parts), code.rem(item, parts)))

    def _each(self, parts: int, most: int, work: Callable[[str], None]) -> None:
        """A phase: `work` for each item of the live rows, so many of a row after those of the row before, in `most`
        shares or fewer. What nobody reads of the other rows stays what it is."""
        code = self._d.code

        def some(share: Share) -> None:
            low, high = share_of(code, share, code.mul(self._rows, parts))
            code.repeat(low, high, 1, work)

        self._chain.phase(min(self._kind.rows * parts, most), some)

    def _norm(self, normed: Normed, rounding: Rounding | None) -> None:
        code = self._d.code

        def row(number: str) -> None:
            normed.row(code, number, self._kind.eps, self._arithmetic)
            if rounding is not None:
                rounding.row(code, number)

        self._each(1, self._threads, row)

    def _attention(self, out: Value) -> None:
        """Norms of heads, rotation, writing to the cache; then attention."""
        kind, code, placing = self._kind.attention, self._d.code, self._placing
        self._each(self._kind.place.heads.heads, 2 * self._threads, placing.item)
        cached = Cached(placing.queries, placing.slots, placing.rows, placing.layer, placing.cache)
        room, rows = self._room, self._rows
        if room is not None:
            self._chain.phase(kind.whole_shares, lambda share: kind.add_whole(code, share, cached, out, room, rows))
            return
        sums = self._d.between(kind.sums_shape, "f32")
        self._chain.phase(kind.shared_shares, lambda share: kind.add_shared(code, share, cached, sums, rows))
        self._chain.phase(kind.joined_shares, lambda share: kind.add_joined(code, share, sums, placing.rows, out, rows))
