"""Products with weights of few bits, written by hand: integer dot products of levels with rounded activations.

The dot products of a group are exact integers, and the groups' sums are added up in float32 one group after the other:
a row's result is the same to the bit whatever rows are computed beside it.

A level never leaves the vector register that it was unpacked in.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from workers.iree.kernels.code import FLOATS, LANES, Code, Value
from workers.iree.kernels.executable import Operand, dispatch
from workers.iree.kernels.heights import Heights
from workers.iree.kernels.linear import share_end, workgroups
from workers.iree.kernels.rounding import LOW_BITS, MAX_ROWS, Rounded
from workers.iree.quantized import LINE, RUN, Packing

Dot = Literal["vpdpbusd", "plain"]
"""How four levels of each lane are multiplied by four activations and added up."""

CHAINS = 4
"""Products that do not wait for each other, at least."""
ROWS_IN_CACHE = 64
"""Rows that are multiplied by a tile of weights before the next tile: their activations stay in the second cache."""
PREFETCH = 4096
"""Bytes ahead of what is read. The CPU itself looks ahead no further than a page's end."""
ELEMENTS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


def choose_dot(features: AbstractSet[str]) -> Dot:
    """The instruction for a CPU with `features` (LLVM's names)."""
    return "vpdpbusd" if "avx512vnni" in features else "plain"


@dataclass(frozen=True, slots=True)
class Product:
    """Rounded rows times a packed matrix, transposed: float32 [padded, outputs]."""

    rounded: Rounded
    outputs: int
    """Those of whole tiles."""
    packing: Packing
    dot: Dot
    bias: bool
    """Numbers are added to the outputs."""
    threads: int

    @property
    def workgroups(self) -> int:
        return workgroups(self.tiles, self.threads)

    @property
    def name(self) -> str:
        size = f"{self.rounded.rows}_{self.outputs}_{self.rounded.inputs}"
        return f"baton_dot_{size}_{self.packing.name}{'_bias' if self.bias else ''}"

    @property
    def tiles(self) -> int:
        return self.outputs // LANES

    @property
    def vectors(self) -> int:
        """Vectors of levels in one group of activations."""
        return self.rounded.group * self.packing.format.bits // (8 * RUN)

    @property
    def dots(self) -> int:
        return self.rounded.group // RUN

    @property
    def block(self) -> int:
        """Rows that are multiplied at once."""
        return self.rounded.block

    @property
    def blocks(self) -> int:
        return self.rounded.padded // self.block

    @property
    def together(self) -> int:
        """Blocks that are multiplied by a tile before the next tile."""
        return max(1, min(self.blocks, ROWS_IN_CACHE // self.block))

    @property
    def sharing(self) -> int:
        """Blocks that fetch the next tile between them."""
        return self.together

    @property
    def chains(self) -> int:
        """Sums of integers of one row and plane: a few rows alone would wait for themselves."""
        return max(1, CHAINS // self.block)

    def operands(self) -> tuple[Operand, Operand, Operand]:
        """The rows' levels and sums and the matrix, as bodies with `tile_sums` name them."""
        r = self.rounded
        levels = Operand("levels", r.levels_shape, "i8", ((r.planes, r.padded, r.inputs // RUN), "i32"))
        sums = Operand("sums", r.sums_shape, "f32")
        return levels, sums, Operand("weights", self.packing.stored_shape(self.outputs, r.inputs), "i8")


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


def constants(p: Product) -> list[str]:
    """What `tile_sums` expects before all loops."""
    return [
        f"%zero = arith.constant dense<0.0> : {FLOATS}",
        f"%no_sum = arith.constant dense<0> : vector<{LANES}xi32>",
        f"%groups = arith.constant {p.rounded.groups} : index",
    ]


def tile_sums(p: Product, soon: Sequence[str]) -> list[str]:
    """%total, a block's rows %row0, %row1 and so on times the tile %tile: float32 [16] of each row.

    `soon` fetches what is read later, once for each group of activations, whose levels begin at byte %levels_at.
    """
    kinds = ", ".join([FLOATS] * p.block)
    starts = ", ".join(f"%sum{j} = %zero" for j in range(p.block))
    return [
        f"%total:{p.block} = scf.for %i = %c0 to %groups step %c1 iter_args({starts}) -> ({kinds}) {{",
        *(f"  {line}" for line in _group(p, soon)),
        f"  scf.yield {', '.join(f'%next{j}' for j in range(p.block))} : {kinds}",
        "}",
    ]


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


def _group(p: Product, soon: Sequence[str]) -> list[str]:
    """Add one group of activations to the sums: %i is its number, %tile the weights', %row0 and on the rows."""
    r, packing = p.rounded, p.packing
    lanes, size = LANES, p.vectors * packing.run_bytes
    floats, weights = f"vector<{lanes}xf32>", f"memref<{p.tiles}x{packing.tile_bytes(r.inputs)}xi8>"
    sums = f"memref<2x{r.padded}x{r.groups}xf32>"
    lines = [
        f"%size = arith.constant {size} : index",
        "%levels_at = arith.muli %i, %size : index",
        f"%dots = arith.constant {p.dots} : index",
        "%run = arith.muli %i, %dots : index",
        *soon,
        *(line for j in range(p.dots) for line in (f"%step{j} = arith.constant {j} : index",)),
        *(f"%run{j} = arith.addi %run, %step{j} : index" for j in range(p.dots)),
        f"%per_scale = arith.constant {packing.format.group // r.group} : index",
        "%scale_group = arith.divui %i, %per_scale : index",
        *_scales(p, "scale", packing.level_bytes(r.inputs), weights),
    ]
    if packing.format.zero == "middle":
        lines.append(f"%zero_f32 = arith.constant dense<{-float(packing.format.middle)}> : {floats}")
    else:
        lines += _scales(p, "zero", packing.level_bytes(r.inputs) + packing.scale_bytes(r.inputs), weights)
    lines += _dots(p, weights)
    for row in range(p.block):
        lines += [
            *_total(p, row),
            f"%row_scale{row} = memref.load %sums[%c0, %row{row}, %i] : {sums}",
            f"%row_sum{row} = memref.load %sums[%c1, %row{row}, %i] : {sums}",
            f"%row_scales{row} = vector.broadcast %row_scale{row} : f32 to {floats}",
            f"%row_sums{row} = vector.broadcast %row_sum{row} : f32 to {floats}",
            f"%scales{row} = arith.mulf %scale_f32, %row_scales{row} : {floats}",
        ]
        if packing.format.zero == "bias":
            lines += [
                f"%biased{row} = math.fma %zero_f32, %row_sums{row}, %sum{row} : {floats}",
                f"%next{row} = math.fma %scales{row}, %dot{row}, %biased{row} : {floats}",
            ]
        else:
            lines += [
                f"%centred{row} = math.fma %zero_f32, %row_sums{row}, %dot{row} : {floats}",
                f"%next{row} = math.fma %scales{row}, %centred{row}, %sum{row} : {floats}",
            ]
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


def ahead(name: str = "%soon") -> list[str]:
    """The byte of a tile that is so far ahead of what is read that it comes in time."""
    return [f"%ahead = arith.constant {PREFETCH} : index", f"{name} = arith.addi %levels_at, %ahead : index"]


def fetch(p: Product, tile: str, count: int) -> list[str]:
    """Fetch lines of memory from byte %soon of a tile on, which may lie behind its end."""
    weights = p.operands()[2].inside
    lines = []
    for j in range(count):
        lines += [
            f"%line{j} = arith.constant {j * LINE} : index",
            f"%soon{j} = arith.addi %soon, %line{j} : index",
            f"memref.prefetch %weights[{tile}, %soon{j}], read, locality<3>, data : {weights}",
        ]
    return lines


def _levels(p: Product, j: int, weights: str) -> list[str]:
    """Load vector `j` of the group's levels, and unpack it to %level0, %level1 and so on."""
    size = p.packing.run_bytes
    loaded, words = f"vector<{size}xi8>", f"vector<{LANES}xi32>"
    lines = [
        f"%level_offset{j} = arith.constant {j * size} : index",
        f"%level_at{j} = arith.addi %levels_at, %level_offset{j} : index",
    ]
    if p.packing.format.bits == 8:
        return [*lines, f"%level{j} = vector.load %weights[%tile, %level_at{j}] : {weights}, {loaded}"]
    return [
        *lines,
        f"%pair{j} = vector.load %weights[%tile, %level_at{j}] : {weights}, {loaded}",
        f"%words{j} = vector.bitcast %pair{j} : {loaded} to {words}",
        f"%four{j} = arith.constant dense<4> : {words}",
        f"%mask{j} = arith.constant dense<{0x0F0F0F0F}> : {words}",
        f"%shifted{j} = arith.shrui %words{j}, %four{j} : {words}",
        f"%low{j} = arith.andi %words{j}, %mask{j} : {words}",
        f"%high{j} = arith.andi %shifted{j}, %mask{j} : {words}",
        f"%level{2 * j} = vector.bitcast %low{j} : {words} to {loaded}",
        f"%level{2 * j + 1} = vector.bitcast %high{j} : {words} to {loaded}",
    ]


def _scales(p: Product, name: str, start: int, weights: str) -> list[str]:
    """Load one number of each lane for the group from the tile's table at `start`: %name_f32."""
    lanes, kind = LANES, ELEMENTS[p.packing.format.scales]
    size = p.packing.scale_bytes(p.packing.format.group)
    typed = f"vector<{lanes}x{kind}>"
    out = f"%{name}_f32" if kind == "f32" else f"%{name}_narrow"
    lines = [
        f"%{name}_start = arith.constant {start} : index",
        f"%{name}_size = arith.constant {size} : index",
        f"%{name}_offset = arith.muli %scale_group, %{name}_size : index",
        f"%{name}_at = arith.addi %{name}_start, %{name}_offset : index",
        f"%{name}_bytes = vector.load %weights[%tile, %{name}_at] : {weights}, vector<{size}xi8>",
        f"{out} = vector.bitcast %{name}_bytes : vector<{size}xi8> to {typed}",
    ]
    return lines if kind == "f32" else [*lines, f"%{name}_f32 = arith.extf {out} : {typed} to vector<{lanes}xf32>"]


def _dots(p: Product, weights: str) -> list[str]:
    """The group's levels times all rows' integers: int32 %int`row`_`plane`_`chain`.

    The next product waits for no other of the last few: what waits fills the CPU's scheduler. Sums of integers are
    exact in any order.
    """
    lines, per = [], p.dots // p.vectors
    totals = dict.fromkeys(_chains(p), "%no_sum")
    for plane in range(p.rounded.planes):
        for j in range(p.dots):
            if plane == 0 and j % per == 0:
                lines += _levels(p, j // per, weights)
            chain = j % p.chains
            for row in range(p.block):
                at = (row, plane, chain)
                result = f"%int{row}_{plane}_{chain}_{j}"
                lines += _dot(p, (plane, row, j), totals[at], result)
                totals[at] = result
    return lines


def _total(p: Product, row: int) -> list[str]:
    """float32 %dot`row`: of several planes each sum is fused onto the rounded one of those before it."""
    words = f"vector<{LANES}xi32>"
    lines = []
    for plane in range(p.rounded.planes):
        at = f"{row}_{plane}"
        total = f"%int{at}_0_{_last(p, 0)}"
        for chain in range(1, p.chains):
            result = f"%chains{at}_{chain}"
            lines.append(f"{result} = arith.addi {total}, %int{at}_{chain}_{_last(p, chain)} : {words}")
            total = result
        last = plane == p.rounded.planes - 1
        out = f"%dot{row}" if last else f"%dot{at}"
        if plane == 0:
            lines.append(f"{out} = arith.sitofp {total} : {words} to {FLOATS}")
            continue
        lines += [
            f"%float{at} = arith.sitofp {total} : {words} to {FLOATS}",
            f"%unit{at} = arith.constant dense<{1 << LOW_BITS}.0> : {FLOATS}",
            f"{out} = math.fma %dot{row}_{plane - 1}, %unit{at}, %float{at} : {FLOATS}",
        ]
    return lines


def _chains(p: Product) -> list[tuple[int, int, int]]:
    planes = range(p.rounded.planes)
    return [(row, plane, chain) for row in range(p.block) for plane in planes for chain in range(p.chains)]


def _last(p: Product, chain: int) -> int:
    """The last product of a chain."""
    return (p.dots - 1 - chain) // p.chains * p.chains + chain


def _dot(p: Product, at: tuple[int, int, int], before: str, result: str) -> list[str]:
    """`result` = `before` + %level`j` times four integers of a row, where `at` is (plane, row, j)."""
    plane, row, j = at
    r, name = p.rounded, f"{plane}_{row}_{j}"
    words, levels = f"vector<{LANES}xi32>", f"vector<{p.packing.run_bytes}xi8>"
    load = (
        f"%x{name} = memref.load %levels[%c{plane}, %row{row}, %run{j}]"
        f" : memref<{r.planes}x{r.padded}x{r.inputs // RUN}xi32>"
    )
    if p.dot == "vpdpbusd":
        intrinsic = f'"llvm.x86.avx512.vpdpbusd.{32 * LANES}"'
        return [
            load,
            f"%xs{name} = vector.broadcast %x{name} : i32 to {words}",
            f"%xb{name} = vector.bitcast %xs{name} : {words} to {levels}",
            f"{result} = llvm.call_intrinsic {intrinsic}({before}, %level{j}, %xb{name})"
            f" : ({words}, {levels}, {levels}) -> {words}",
        ]
    lines = [load, f"%l{name} = vector.bitcast %level{j} : {levels} to {words}"]
    for byte in range(RUN):
        this = f"{name}_{byte}"
        out = result if byte == RUN - 1 else f"%sum{this}"
        lines += [
            f"%right{this} = arith.constant dense<{8 * byte}> : {words}",
            f"%byte{this} = arith.constant dense<255> : {words}",
            f"%moved{this} = arith.shrui %l{name}, %right{this} : {words}",
            f"%one{this} = arith.andi %moved{this}, %byte{this} : {words}",
            f"%up{this} = arith.constant {24 - 8 * byte} : i32",
            f"%down{this} = arith.constant 24 : i32",
            f"%top{this} = arith.shli %x{name}, %up{this} : i32",
            f"%x{this} = arith.shrsi %top{this}, %down{this} : i32",
            f"%xs{this} = vector.broadcast %x{this} : i32 to {words}",
            f"%times{this} = arith.muli %one{this}, %xs{this} : {words}",
            f"{out} = arith.addi {before}, %times{this} : {words}",
        ]
        before = out
    return lines
