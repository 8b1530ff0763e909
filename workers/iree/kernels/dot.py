"""Products with weights of few bits, written by hand: tile after tile, for as many rows at once as registers allow."""

from dataclasses import dataclass

from workers.iree.kernels.code import FLOATS, LANES, Code, Value
from workers.iree.kernels.executable import Operand, dispatch
from workers.iree.kernels.heights import Heights
from workers.iree.kernels.product import Product
from workers.iree.kernels.rounding import MAX_ROWS
from workers.iree.kernels.shares import share_end
from workers.iree.kernels.tile import ahead, constants, fetch, tile_sums
from workers.iree.quantized import LINE


@dataclass(frozen=True, slots=True)
class _Block(Product):
    """A product in blocks of another height."""

    height: int
    fewest: int
    """Blocks of it that there are at least."""

    @property
    def block(self) -> int:
        return self.height

    @property
    def blocks(self) -> int:
        return -(-self.rounded.rows // self.height)

    @property
    def sharing(self) -> int:
        return min(self.fewest, self.together)


def product(p: Product, *, live: bool = False) -> str:
    """levels and sums of `Rounded`, weights int8 [tiles, bytes] (, bias f32 [outputs]) (, live i32 [1])
    -> f32 [padded, outputs], of which the first `live` rows are computed.
    """
    levels, sums, weights = p.operands()
    bias = [Operand("bias", (p.outputs,), "f32")] if p.bias else []
    number = [Operand("live", (1,), "i32")] if live else []
    out = Operand("out", (p.rounded.padded, p.outputs), "f32")
    code = Code()
    for line in constants(p):
        code.do(line)
    low, high = (share_end(code, code.add("%id", end), p.workgroups, p.tiles) for end in (0, 1))

    def blocks(b: Product, count: str, last: str) -> None:
        """All of the workgroup's tiles, for so many blocks, the last of which begins at a certain row."""
        code.do(f"scf.for %from = %c0 to {count} step {code.index(b.together)} {{")
        to = code.least(code.add("%from", b.together), count)
        code.do(f"scf.for %tile = {low} to {high} step %c1 {{")
        code.do(f"%column = arith.muli %tile, {code.index(LANES)} : index")
        code.do(f"scf.for %block = %from to {to} step %c1 {{")
        code.do(f"%row = arith.minui {code.mul('%block', b.block)}, {last} : index")
        code.lines += [f"%row{j} = arith.addi %row, {code.index(j)} : index" for j in range(b.block)]
        code.lines += tile_sums(b, _soon(b))
        code.lines += [line for j in range(b.block) for line in _store(b, j, out.inside)]
        code.do("}\n}\n}")

    def of_height(height: int, end: str, last: str) -> None:
        fewest = min(-(-limit // height) for limit, its in heights.limits if its == height)
        b = _Block(p.rounded, p.outputs, p.packing, p.dot, p.bias, p.threads, height, fewest)
        blocks(b, code.div(code.add(end, height - 1), height), last)

    heights = Heights(p.rounded.rows, MAX_ROWS)
    if live:
        heights.choose(code, Value("%live", (1,), "i32", memory=True), of_height)
    else:
        blocks(p, code.index(p.blocks), code.index(p.rounded.padded - p.block))
    name = f"{p.name}{'_live' if live else ''}"
    return dispatch(name, [levels, sums, weights, *bias, *number], [out], p.workgroups, code.text())


def _store(p: Product, row: int, out: str) -> list[str]:
    """Store one row of the tile, with the bias when there is one."""
    lines, total = [], f"%total#{row}"
    if p.bias:
        lines = [
            f"%bias{row} = vector.load %bias[%column] : memref<{p.outputs}xf32>, {FLOATS}",
            f"%biased{row} = arith.addf {total}, %bias{row} : {FLOATS}",
        ]
        total = f"%biased{row}"
    lines.append(f"vector.store {total}, %out[%row{row}, %column] : {out}, {FLOATS}")
    return lines


def _soon(p: Product) -> list[str]:
    """Fetch what is read later: a single block of rows reads on in memory, several of them share the next tile."""
    if p.together == 1:
        return [*ahead(), *fetch(p, "%tile", p.vectors)]
    count = -(-p.vectors // p.sharing)
    return [
        "%before = arith.subi %block, %from : index",
        "%groups_before = arith.muli %before, %groups : index",
        "%turn = arith.addi %groups_before, %i : index",
        f"%turn_bytes = arith.constant {count * LINE} : index",
        "%soon = arith.muli %turn, %turn_bytes : index",
        "%next_tile = arith.addi %tile, %c1 : index",
        *fetch(p, "%next_tile", count),
    ]
