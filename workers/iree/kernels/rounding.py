"""Rows of activations as integers: what products with weights of few bits multiply by.

A row is rounded to 8 bits in groups of neighbouring inputs, each with its own scale, as llama.cpp does for its Q8_0 and
Q4_0 products, or to 22 bits in three planes. A row is rounded by itself, whatever rows are beside it.
"""

from dataclasses import dataclass

from workers.iree.kernels.arithmetic import Arithmetic
from workers.iree.kernels.code import FLOATS, LANES
from workers.iree.kernels.executable import Operand, dispatch
from workers.iree.kernels.linear import stride
from workers.iree.quantized import Packing

ROUND_GROUP = 64
"""The most activations that share a scale."""
LOW_BITS = 7
"""Of an integer of several planes, in each but the first."""
MAX_ROWS = 8
"""Rows of one block: their sums, of integers and of floats, stay in registers."""
SMALLEST = "1.0e-30"
"""The least size of a group's largest activation; keeps a group of zeros from dividing by zero."""


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


def rounded_rows(rows: int, inputs: int, packing: Packing, words: Arithmetic, planes: int) -> Rounded:
    """How rows are rounded for a matrix of this packing."""
    return Rounded(rows, inputs, min(packing.format.group, ROUND_GROUP), packing.format.zero == "bias", words, planes)


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
