"""A dense layer as one kernel of many phases (`chain`), for steps of a few rows."""

from dataclasses import dataclass

from workers.architectures.parts import Activation
from workers.iree.kernels.attention import Attention, Cached
from workers.iree.kernels.chain import Chain, counters
from workers.iree.kernels.code import LANES, Value
from workers.iree.kernels.executable import Kernel
from workers.iree.kernels.linear import Cut, add_gated, add_linear, stride
from workers.iree.kernels.norm import Norm, Normed
from workers.iree.kernels.place import Place, Placing
from workers.iree.kernels.shares import Share, share_of

PHASES = 9
"""At most."""


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


class _Layer:
    """The operands and the phases of a layer's kernel."""

    def __init__(self, name: str, kind: Layer) -> None:
        self._kind, heads = kind, kind.place.heads
        self._arithmetic, self._threads = kind.place.arithmetic, kind.attention.threads
        self._d = d = Kernel(name, self._threads)
        self._mixed_width = heads.queries * heads.head_dim
        width = self._mixed_width + 2 * heads.heads * heads.head_dim
        self._h, self._x = self._take_words(kind.hidden), d.take((kind.rows, kind.hidden), "f32")
        self._live = d.take((1,), "i32") if kind.live else None
        self._qkv, self._qkv_bias = self._matrix(width, kind.hidden, kind.biases[0])
        self._heads = d.between((kind.rows, width), "f32")
        queries = d.between((kind.rows, self._mixed_width // self._arithmetic.word), "i32")
        self._placing = Placing(kind.place, d, self._heads, queries)
        self._o, self._o_bias = self._matrix(kind.hidden, self._mixed_width, kind.biases[1])
        self._after_attention = self._norm_weights(kind.norms[0])
        self._up, self._down = (
            self._matrix(*size, False)[0] for size in ((2 * kind.ffn, kind.hidden), (kind.hidden, kind.ffn))
        )
        self._after_mlp = self._norm_weights(kind.norms[1])
        counts = d.change((kind.counters,), "i32")
        number = d.code.extract_index(self._placing.layer, [d.code.index(0)])
        self._room = None if kind.attention.split else kind.attention.room(d.code)
        self._chain = Chain(d, PHASES, counts, number, kind.pause)

    def _words(self, width: int) -> tuple[int, int]:
        return (self._kind.rows, stride(width, self._arithmetic))

    def _take_words(self, width: int) -> Value:
        return self._d.take(self._words(width), "i32")

    def _matrix(self, outputs: int, inputs: int, bias: bool) -> tuple[Value, Value | None]:
        weights = self._d.take((outputs // LANES, inputs * LANES), self._arithmetic.element)
        return weights, self._d.take((outputs,), "f32") if bias else None

    def _norm_weights(self, norm: Norm) -> tuple[Value | None, Value | None]:
        after, before = (
            self._d.take((self._kind.hidden,), "f32") if there else None for there in (norm.after, norm.before)
        )
        return after, before

    def text(self) -> str:
        """All phases."""
        kind, d = self._kind, self._d
        floats = (kind.rows, kind.hidden)
        mixed, normed, gated = (
            d.between(self._words(width), "i32") for width in (self._mixed_width, kind.hidden, kind.ffn)
        )
        delta, between = (d.between(floats, "f32") for _ in range(2))
        total, out = d.give(floats, "f32"), d.give(self._words(kind.hidden), "i32")

        self._product(self._h, self._qkv, self._qkv_bias, self._heads, kind.hidden)
        self._attention(mixed)
        self._product(mixed, self._o, self._o_bias, delta, self._mixed_width)
        self._norm(Normed(self._x, delta, *self._after_attention, between, normed))
        self._gated(normed, gated)
        self._product(gated, self._down, None, delta, kind.ffn)
        self._norm(Normed(between, delta, *self._after_mlp, total, out))
        return self._chain.end()

    def _product(self, x: Value, w: Value, bias: Value | None, out: Value, inputs: int) -> None:
        cut = Cut(self._kind.rows, w.shape[0], inputs, self._arithmetic, 1, self._kind.live)
        code, live = self._d.code, self._live
        self._chain.phase(cut.shares(self._threads), lambda share: add_linear(code, share, cut, x, w, out, bias, live))

    def _gated(self, x: Value, out: Value) -> None:
        kind, code, live = self._kind, self._d.code, self._live
        cut = Cut(kind.rows, kind.ffn // LANES, kind.hidden, self._arithmetic, 2, kind.live)

        def work(share: Share) -> None:
            add_gated(code, share, cut, x, self._up, out, kind.activation, live)

        self._chain.phase(cut.shares(self._threads), work)

    def _norm(self, normed: Normed) -> None:
        code, rows = self._d.code, self._kind.rows

        def work(share: Share) -> None:
            low, high = share_of(code, share, code.index(rows))
            code.repeat(low, high, 1, lambda row: normed.row(code, row, self._kind.eps, self._arithmetic))

        self._chain.phase(min(rows, self._threads), work)

    def _attention(self, out: Value) -> None:
        """Norms of heads, rotation, writing to the cache; then attention."""
        kind, code, placing = self._kind.attention, self._d.code, self._placing
        items = self._kind.place.items

        def place(share: Share) -> None:
            low, high = share_of(code, share, code.index(items))
            code.repeat(low, high, 1, placing.item)

        self._chain.phase(min(items, 2 * self._threads), place)
        cached = Cached(placing.queries, placing.slots, placing.rows, placing.layer, placing.cache)
        room = self._room
        if room is not None:
            self._chain.phase(kind.whole_shares, lambda share: kind.add_whole(code, share, cached, out, room))
            return
        sums = self._d.between(kind.sums_shape, "f32")
        self._chain.phase(kind.shared_shares, lambda share: kind.add_shared(code, share, cached, sums))
        self._chain.phase(kind.joined_shares, lambda share: kind.add_joined(code, share, sums, placing.rows, out))
