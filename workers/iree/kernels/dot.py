"""Products with weights of few bits, written by hand: integer dot products of levels with activations of 8 bits.

A row of activations is rounded to 8 bits in groups of neighbouring inputs, each with its own scale, as llama.cpp does
for its Q8_0 and Q4_0 products. The dot products of a group are exact integers, and the groups' sums are added up in
float32 one group after the other: a row's result is the same to the bit whatever rows are computed beside it.

A level never leaves the vector register that it was unpacked in.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from workers.architectures.parts import Activation
from workers.iree.kernels.arithmetic import Arithmetic
from workers.iree.kernels.code import FLOATS, LANES, Dispatch, Value
from workers.iree.kernels.executable import Operand, dispatch
from workers.iree.kernels.linear import ACTIVATIONS, stride, workgroups
from workers.iree.quantized import LINE, RUN, Packing

Dot = Literal["vpdpbusd", "plain"]
"""How four levels of each lane are multiplied by four activations and added up."""

ROUND_GROUP = 64
"""The most activations that share a scale."""
LOW_BITS = 7
"""Of an integer of several planes, in each but the first."""
CHAINS = 4
"""Products that do not wait for each other, at least."""
MAX_ROWS = 8
"""Rows of one block: their sums, of integers and of floats, stay in registers."""
ROWS_IN_CACHE = 64
"""Rows that are multiplied by a tile of weights before the next tile: their activations stay in the second cache."""
PREFETCH = 4096
"""Bytes ahead of what is read. The CPU itself looks ahead no further than a page's end."""
SMALLEST = "1.0e-30"
"""The least size of a group's largest activation; keeps a group of zeros from dividing by zero."""
ELEMENTS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


def choose_dot(features: AbstractSet[str]) -> Dot:
    """The instruction for a CPU with `features` (LLVM's names)."""
    return "vpdpbusd" if "avx512vnni" in features else "plain"


@dataclass(frozen=True, slots=True)
class Rounded:
    """Rows of activations as a product takes them: 8 bits each and two numbers a group."""

    rows: int
    inputs: int
    group: int
    """Inputs that share a scale."""
    weighted: bool
    """The second number is the sum of the group's activations; without it that of their integers."""
    words: Arithmetic
    """Of the rows before they are rounded."""
    planes: int
    """1: integers of 8 bits. 3: of 22 bits, their upper eight in the first plane, then seven and seven."""

    @property
    def last(self) -> int:
        """The integer of a group's largest activation."""
        return 127 << LOW_BITS * (self.planes - 1)

    @property
    def block(self) -> int:
        """Rows that are multiplied at once; there are whole blocks, the last one filled up with what may be there."""
        return -(-self.rows // -(-self.rows // MAX_ROWS))

    @property
    def padded(self) -> int:
        return -(-self.rows // self.block) * self.block

    @property
    def groups(self) -> int:
        return self.inputs // self.group

    @property
    def name(self) -> str:
        kind = "weighted" if self.weighted else "plain"
        return f"baton_round{8 * self.planes}_{self.rows}_{self.inputs}_{self.group}_{kind}"

    @property
    def levels_shape(self) -> tuple[int, int, int]:
        return (self.planes, self.padded, self.inputs)

    @property
    def sums_shape(self) -> tuple[int, int, int]:
        """Scales, then sums."""
        return (2, self.padded, self.groups)


def round_rows(r: Rounded) -> str:
    """x, words int32 [rows, stride] -> int8 [planes, padded, inputs] and float32 [2, padded, groups].

    A group's largest activation becomes `last` or its negative, ties go to the even integer. What is not a number
    makes its group's scale not a number, and so every output.
    """
    lanes, width, element = LANES, stride(r.inputs, r.words), "f32" if r.words.word == 1 else r.words.element
    x = Operand("x", (r.rows, width), "i32", ((r.rows, width * r.words.word), element))
    levels, sums = Operand("levels", r.levels_shape, "i8"), Operand("sums", r.sums_shape, "f32")
    floats, ints = f"vector<{lanes}xf32>", f"vector<{lanes}xi32>"
    parts = range(r.group // lanes)
    load = "".join(
        f"""
          %offset{j} = arith.constant {lanes * j} : index
          %at{j} = arith.addi %start, %offset{j} : index
{_widened(r, j, x.inside)}
          %size{j} = math.absf %v{j} : {floats}"""
        for j in parts
    )
    store = "".join(
        f"""
          %scaled{j} = arith.mulf %v{j}, %times : {floats}
          %even{j} = math.roundeven %scaled{j} : {floats}
          %int{j} = arith.fptosi %even{j} : {floats} to {ints}
{_planes(r, j, levels.inside)}"""
        for j in parts
    )
    total = "%sum_scaled = arith.mulf %sum_f32, %scale : f32" if r.weighted else ""
    body = f"""
        %least = arith.constant {SMALLEST} : f32
        %last = arith.constant {r.last}.0 : f32
        %group = arith.constant {r.group} : index
        %groups = arith.constant {r.groups} : index
        scf.for %i = %c0 to %groups step %c1 {{
          %start = arith.muli %i, %group : index{load}
{_fold("size", "arith.maximumf", floats, len(parts))}
          %largest = vector.reduction <maximumf>, %size : {floats} into f32
          %top = arith.maximumf %largest, %least : f32
          %inverse = arith.divf %last, %top : f32
          %scale = arith.divf %top, %last : f32
          %times = vector.broadcast %inverse : f32 to {floats}{store}
{_fold("int", "arith.addi", ints, len(parts))}
          %sum = vector.reduction <add>, %int : {ints} into i32
          %sum_f32 = arith.sitofp %sum : i32 to f32
          {total}
          memref.store %scale, %sums[%c0, %id, %i] : {sums.inside}
          memref.store {"%sum_scaled" if r.weighted else "%sum_f32"}, %sums[%c1, %id, %i] : {sums.inside}
        }}"""
    return dispatch(r.name, [x], [levels, sums], r.rows, body)


def _widened(r: Rounded, j: int, x: str) -> str:
    """Load %v`j`, the float32 values of neighbours from %at`j` on."""
    if r.words.word == 1:
        return f"          %v{j} = vector.load %x[%id, %at{j}] : {x}, {FLOATS}"
    narrow = f"vector<{LANES}x{r.words.element}>"
    return (
        f"          %narrow{j} = vector.load %x[%id, %at{j}] : {x}, {narrow}\n"
        f"          %v{j} = arith.extf %narrow{j} : {narrow} to {FLOATS}"
    )


def _planes(r: Rounded, j: int, levels: str) -> str:
    """Store %int`j` in its planes: each takes the nearest multiple of its lowest bit and leaves the rest."""
    ints, bytes_ = f"vector<{LANES}xi32>", f"vector<{LANES}xi8>"
    lines, rest = [], f"%int{j}"
    for plane in range(r.planes):
        part, bits = rest, LOW_BITS * (r.planes - 1 - plane)
        if bits:
            name = f"{j}_{plane}"
            part = f"%part{name}"
            lines += [
                f"%half{name} = arith.constant dense<{1 << bits - 1}> : {ints}",
                f"%bits{name} = arith.constant dense<{bits}> : {ints}",
                f"%nearest{name} = arith.addi {rest}, %half{name} : {ints}",
                f"{part} = arith.shrsi %nearest{name}, %bits{name} : {ints}",
                f"%covered{name} = arith.shli {part}, %bits{name} : {ints}",
                f"%rest{name} = arith.subi {rest}, %covered{name} : {ints}",
            ]
            rest = f"%rest{name}"
        lines += [
            f"%byte{j}_{plane} = arith.trunci {part} : {ints} to {bytes_}",
            f"vector.store %byte{j}_{plane}, %levels[%c{plane}, %id, %at{j}] : {levels}, {bytes_}",
        ]
    return "\n".join(f"          {line}" for line in lines)


def _fold(name: str, operation: str, kind: str, count: int) -> str:
    """%name0, %name1, ... -> %name."""
    lines, last = [], f"%{name}0"
    for j in range(1, count):
        result = f"%{name}" if j == count - 1 else f"%{name}_to{j}"
        lines.append(f"          {result} = {operation} {last}, %{name}{j} : {kind}")
        last = result
    return "\n".join(lines)


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
        return workgroups(self.tiles, self.packing.tile_bytes(self.rounded.inputs), self.threads)

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
    def blocks(self) -> int:
        return self.rounded.padded // self.rounded.block

    @property
    def together(self) -> int:
        """Blocks that are multiplied by a tile before the next tile."""
        return max(1, min(self.blocks, ROWS_IN_CACHE // self.rounded.block))

    @property
    def chains(self) -> int:
        """Sums of integers of one row and plane: a few rows alone would wait for themselves."""
        return max(1, CHAINS // self.rounded.block)


def rounded_rows(rows: int, inputs: int, packing: Packing, words: Arithmetic, planes: int) -> Rounded:
    """How rows are rounded for a matrix of this packing."""
    return Rounded(rows, inputs, min(packing.format.group, ROUND_GROUP), packing.format.zero == "bias", words, planes)


def product(p: Product) -> str:
    """levels and sums of `Rounded`, weights int8 [tiles, bytes] (, bias f32 [outputs]) -> f32 [padded, outputs]."""
    r, lanes = p.rounded, LANES
    levels = Operand("levels", r.levels_shape, "i8", ((r.planes, r.padded, r.inputs // RUN), "i32"))
    sums = Operand("sums", r.sums_shape, "f32")
    weights = Operand("weights", p.packing.stored_shape(p.outputs, r.inputs), "i8")
    bias = [Operand("bias", (p.outputs,), "f32")] if p.bias else []
    out = Operand("out", (r.padded, p.outputs), "f32")
    floats = f"vector<{lanes}xf32>"
    kinds = ", ".join([floats] * r.block)
    starts = ", ".join(f"%sum{j} = %zero" for j in range(r.block))
    rows = "".join(
        f"""
              %offset{j} = arith.constant {j} : index
              %row{j} = arith.addi %row, %offset{j} : index"""
        for j in range(r.block)
    )
    stores = "\n".join(["", *(line for j in range(r.block) for line in _store(p, j, out.inside))])
    body = f"""
        %zero = arith.constant dense<0.0> : {floats}
        %no_sum = arith.constant dense<0> : vector<{lanes}xi32>
        %shares = arith.constant {p.workgroups} : index
        %tiles = arith.constant {p.tiles} : index
        %blocks = arith.constant {p.blocks} : index
        %together = arith.constant {p.together} : index
        %block_rows = arith.constant {r.block} : index
        %groups = arith.constant {r.groups} : index
        %lanes = arith.constant {lanes} : index
        %next_id = arith.addi %id, %c1 : index
        %before_first = arith.muli %id, %tiles : index
        %before_end = arith.muli %next_id, %tiles : index
        %first = arith.divui %before_first, %shares : index
        %end = arith.divui %before_end, %shares : index
        scf.for %from = %c0 to %blocks step %together {{
          %from_end = arith.addi %from, %together : index
          %to = arith.minsi %from_end, %blocks : index
          scf.for %tile = %first to %end step %c1 {{
            %column = arith.muli %tile, %lanes : index
            scf.for %block = %from to %to step %c1 {{
              %row = arith.muli %block, %block_rows : index{rows}
              %total:{r.block} = scf.for %i = %c0 to %groups step %c1 iter_args({starts}) -> ({kinds}) {{{_group(p)}
                scf.yield {", ".join(f"%next{j}" for j in range(r.block))} : {kinds}
              }}{stores}
            }}
          }}
        }}"""
    return dispatch(p.name, [levels, sums, weights, *bias], [out], p.workgroups, body)


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
    return [f"              {line}" for line in lines]


def _group(p: Product) -> str:
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
        *_prefetch(p, weights),
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
    for row in range(r.block):
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
    return "".join(f"\n                {line}" for line in lines)


def _prefetch(p: Product, weights: str) -> list[str]:
    """Fetch what is read later: a single block of rows reads on in memory, several of them share the next tile."""
    if p.together == 1:
        lines = [
            f"%ahead = arith.constant {PREFETCH} : index",
            "%soon = arith.addi %levels_at, %ahead : index",
            "%fetched = arith.addi %tile, %c0 : index",
        ]
        count = p.vectors
    else:
        count = -(-p.vectors // p.together)
        lines = [
            "%before = arith.subi %block, %from : index",
            "%groups_before = arith.muli %before, %groups : index",
            "%turn = arith.addi %groups_before, %i : index",
            f"%turn_bytes = arith.constant {count * LINE} : index",
            "%soon = arith.muli %turn, %turn_bytes : index",
            "%fetched = arith.addi %tile, %c1 : index",
        ]
    for j in range(count):
        lines += [
            f"%line{j} = arith.constant {j * LINE} : index",
            f"%soon{j} = arith.addi %soon, %line{j} : index",
            f"memref.prefetch %weights[%fetched, %soon{j}], read, locality<3>, data : {weights}",
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
            for row in range(p.rounded.block):
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
    r = p.rounded
    return [(row, plane, chain) for row in range(r.block) for plane in range(r.planes) for chain in range(p.chains)]


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


def gate(name: str, rows: int, ffn: int, words: Arithmetic, activation: Activation) -> str:
    """act(gate) * up: f32 [rows, 2 * ffn], gates first -> words int32 [rows, stride]."""
    d = Dispatch(name, (rows,))
    code = d.code
    row = d.workgroup()
    x, out = d.take((rows, 2 * ffn), "f32"), d.give((rows, stride(ffn, words)), "i32")

    def turn(column: str, part: Value) -> Value:
        gates, up = code.read(x, [row, column]), code.read(x, [row, code.add(column, ffn)])
        product = code.let(f"arith.mulf {ACTIVATIONS[activation](code, gates)}, {up} : {FLOATS}")
        where = [code.index(0), code.div(column, words.word)]
        return code.write(words.words(code, product), LANES // words.word, part, where)

    empty = code.empty((1, ffn // words.word), "i32")
    d.store(code.carry(code.index(0), code.index(ffn), LANES, empty, turn), out, [row, "0"])
    return d.function()
