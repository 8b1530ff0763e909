"""The products of a mixture of experts with weights of few bits: those of `tile` for the pairs of one expert.

Rows are rounded as for any other product, so a pair's sums are what the expert's matrix alone would give.
"""

from collections.abc import Callable
from dataclasses import dataclass

from workers.architectures.parts import Activation
from workers.iree.kernels.arithmetic import Arithmetic
from workers.iree.kernels.code import FLOATS, LANES, Code, Value
from workers.iree.kernels.executable import Operand, dispatch
from workers.iree.kernels.experts import Shares
from workers.iree.kernels.linear import ACTIVATIONS, stride
from workers.iree.kernels.product import Dot, Product
from workers.iree.kernels.rounding import MAX_ROWS, Rounded
from workers.iree.kernels.routing import Mixture
from workers.iree.kernels.tile import ahead, constants, fetch, tile_sums
from workers.iree.quantized import Packing


@dataclass(frozen=True, slots=True)
class ExpertProduct(Product):
    """Some pairs at once times the tiles of their expert; `outputs` are those of all experts."""

    pairs: int

    @property
    def block(self) -> int:
        return self.pairs

    @property
    def together(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """One of a mixture's two matrices, and the rows that it is multiplied by."""

    mixture: Mixture
    rounded: Rounded
    packing: Packing
    dot: Dot
    threads: int

    def product(self, outputs: int, pairs: int) -> ExpertProduct:
        """`outputs` are those of one expert."""
        whole = outputs * self.mixture.experts.count
        return ExpertProduct(self.rounded, whole, self.packing, self.dot, False, self.threads, pairs)

    def shares(self, tiles: int, kinds: int) -> Shares:
        """`kinds` tiles are read for each of `tiles`."""
        size = kinds * self.packing.tile_bytes(self.rounded.inputs)
        return Shares.of(self.mixture, tiles, size, self.threads)


def packed_up(name: str, e: PackedExperts, arithmetic: Arithmetic, activation: Activation) -> str:
    """levels and sums of the step's rows, weights int8 [count * 2 * ffn / 16, bytes], what `routing.group` gives
    -> act(gate) * up of each pair, words [pairs, stride] of width ffn.
    """
    m, ffn = e.mixture, e.mixture.experts.ffn
    shares, words, code = e.shares(m.up_tiles, kinds=2), LANES // arithmetic.word, Code()
    out = Value("%out", (m.pairs, stride(ffn, arithmetic)), "i32", memory=True)

    def tile(expert: str, pairs: list[str], first: str, _: int) -> None:
        rows = [code.div(pair, m.experts.per_token) for pair in pairs]
        gate = code.add(code.mul(expert, 2 * m.up_tiles), first)
        sums = _gate_and_up(code, e.product(2 * ffn, len(pairs)), rows, gate, m.up_tiles)
        for pair, (gates, ups) in zip(pairs, sums, strict=True):
            value = code.let(f"arith.mulf {ACTIVATIONS[activation](code, gates)}, {ups} : {FLOATS}")
            code.put(arithmetic.words(code, value), words, out, [pair, code.mul(first, words)])

    return _function(name, code, shares, e.product(2 * ffn, 1), out, tile)


def packed_down(name: str, e: PackedExperts) -> str:
    """levels and sums of the pairs, weights int8 [count * hidden / 16, bytes], what `routing.group` gives
    -> f32 [pairs, hidden].
    """
    m = e.mixture
    shares, code = e.shares(m.down_tiles, kinds=1), Code()
    out = Value("%out", (m.pairs, m.hidden), "f32", memory=True)

    def tile(expert: str, pairs: list[str], first: str, _: int) -> None:
        p = e.product(m.hidden, len(pairs))
        _rows(code, pairs)
        code.do(f"%tile = arith.addi {code.mul(expert, m.down_tiles)}, {first} : index")
        for line in tile_sums(p, [*ahead(), *fetch(p, "%tile", p.vectors)]):
            code.do(line)
        for j, pair in enumerate(pairs):
            code.put(f"%total#{j}", LANES, out, [pair, code.mul(first, LANES)])

    return _function(name, code, shares, e.product(m.hidden, 1), out, tile)


def _gate_and_up(code: Code, p: Product, rows: list[str], gate: str, apart: int) -> list[tuple[str, str]]:
    """Both sums of each row: those of the tile `gate` and of the one `apart` tiles further on, one after the other."""
    _rows(code, rows)
    size = p.packing.tile_bytes(p.rounded.inputs)
    # Behind a gate's end lies the next gate, but its other half is read first, and the next gate after that.
    to_up, to_gate = code.index((apart - 1) * size), code.index(-apart * size)
    end = code.index(size)

    def half(which: str, before: list[str]) -> list[str]:
        code.do(f"%before = arith.muli {which}, {code.index(apart)} : index")
        code.do(f"%tile = arith.addi {gate}, %before : index")
        first = code.let(f"arith.cmpi eq, {which}, %c0 : index")
        jump = code.let(f"arith.select {first}, {to_up}, {to_gate} : index")
        soon = [
            *ahead("%straight"),
            f"%beyond = arith.cmpi uge, %straight, {end} : index",
            f"%jump = arith.select %beyond, {jump}, %c0 : index",
            "%soon = arith.addi %straight, %jump : index",
        ]
        for line in tile_sums(p, [*soon, *fetch(p, "%tile", p.vectors)]):
            code.do(line)
        return [each for j in range(p.block) for each in (before[2 * j + 1], f"%total#{j}")]

    sums = code.loop("%c0", "%c2", 1, [("%zero", FLOATS)] * (2 * p.block), half)
    return list(zip(sums[::2], sums[1::2], strict=True))


def _rows(code: Code, rows: list[str]) -> None:
    """The names under which `tile_sums` looks for rows."""
    for j, row in enumerate(rows):
        code.do(f"%row{j} = arith.addi {row}, %c0 : index")


def _function(
    name: str,
    code: Code,
    shares: Shares,
    p: Product,
    out: Value,
    tile: Callable[[str, list[str], str, int], None],
) -> str:
    """The dispatch that calls `tile` as `Shares.walk` does; any product `p` of its matrix says what it takes."""
    lists = [
        Operand(each, (size,), "i32") for each, size in zip(("order", "chosen", "starts"), shares.lists, strict=True)
    ]
    for line in constants(p):
        code.do(line)
    places = [Value(f"%{each.name}", each.shape, each.element, memory=True) for each in lists]
    shares.walk(code, places, shares.blocks(MAX_ROWS // p.rounded.planes), lambda _: 1, tile)
    result = Operand("out", out.shape, out.element)
    return dispatch(name, [*p.operands(), *lists], [result], shares.workgroups, code.text())
