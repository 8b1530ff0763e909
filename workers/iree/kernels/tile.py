"""One tile of weights of few bits times a block of rows: integer dot products of levels with rounded activations.

The dot products of a group are exact integers, and the groups' sums are added up in float32 one group after the other:
a row's result is the same to the bit whatever rows are computed beside it.

A level never leaves the vector register that it was unpacked in.
"""

from collections.abc import Sequence

from workers.iree.kernels.code import FLOATS, LANES
from workers.iree.kernels.product import Product
from workers.iree.kernels.rounding import LOW_BITS
from workers.iree.quantized import LINE, RUN

PREFETCH = 4096
"""Bytes ahead of what is read. The CPU itself looks ahead no further than a page's end."""
ELEMENTS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


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
