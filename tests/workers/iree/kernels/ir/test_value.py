"""A wrong operand fails in the line that writes it; others become operations. Nothing is compiled."""

import math
from collections.abc import Callable

import pytest

from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.literal import literal
from workers.iree.kernels.ir.mlir_types import F32, F32_VECTOR, I32, I32_VECTOR, INDEX, Type
from workers.iree.kernels.ir.operations import exp, fma, intrinsic
from workers.iree.kernels.ir.value import Value, vector

I1, I64, BYTES = Type("i1"), Type("i64"), Type("i8", 64)
TYPES = {"f": F32, "i": I32, "l": I64, "x": INDEX, "b": I1, "F": F32_VECTOR, "I": I32_VECTOR, "Q": Type("f32", 4)}
"""One letter for each type: capitals are vectors."""


@pytest.fixture
def code() -> Code:
    return Code()


def values(code: Code, letters: str) -> list[Value]:
    return [Value(code, f"%{letter}", TYPES[letter]) for letter in letters]


WRONG: dict[str, tuple[str, Callable[..., object], str]] = {
    "float and int": ("fi", lambda f, i: f + i, "addf: the operands are f32 and i32"),
    "int and index": ("ix", lambda i, x: i * x, "muli: the operands are i32 and index"),
    "widths": ("il", lambda i, n: i < n, "lt: the operands are i32 and i64"),
    "lanes": ("FQ", lambda a, b: a - b, "subf: the operands are vector<16xf32> and vector<4xf32>"),
    "scalar of another type": ("Fi", lambda a, b: a + b, "the operands are vector<16xf32> and vector<16xi32>"),
    "bits of floats": ("f", lambda f: f & 1, "andi: f32 is not an integer type"),
    "shift of floats": ("F", lambda f: f >> 1, "shrui: vector<16xf32> is not an integer type"),
    "division of ints": ("i", lambda i: i / 2, "/: i32 is not a floating-point type"),
    "quotient of floats": ("f", lambda f: f // 2, "divui: f32 is not an integer type"),
    "exp of ints": ("I", exp, "exp: vector<16xi32> is not a floating-point type"),
    "fma of ints": ("I", lambda i: fma(i, i, i), "vector.fma: vector<16xi32> is not a floating-point type"),
    "fma of lanes": ("FQ", lambda a, b: fma(a, a, b), "the operands are vector<16xf32> and vector<4xf32>"),
    "condition": ("if", lambda i, f: i.select(f, f), "select: the condition is i32, not i1"),
    "choices": ("bfi", lambda b, f, i: b.select(f, i), "select: the operands are f32 and i32"),
    "no value": ("b", lambda b: b.select(1, 0), "select: one of the two must be a value"),
    "bits of index": ("x", lambda x: x.view("i32"), "view: index has other bits than i32"),
    "fewer bits": ("f", lambda f: f.view("i64"), "view: f32 has other bits than i64"),
    "float index": ("f", lambda f: f.astype("index"), "astype: f32 cannot become index"),
    "lanes of bits": ("i", lambda i: i.bitcast("i8"), "bitcast: i32 is not a vector"),
    "no type": ("i", lambda i: i.astype("i33"), "'i33' is not one of i1, i8, i16, i32"),
    "vector again": ("F", lambda f: f.broadcast(), r"broadcast: vector<16xf32> is not a scalar"),
    "lanes of a scalar": ("f", lambda f: f.reduce("add"), "reduce: f32 is not a vector"),
    "fraction": ("i", lambda i: i + 0.5, "0.5 is not an i32"),
    "signed floats": ("f", lambda f: f.compare("slt", f), "compare: f32 is not an integer type"),
    "signed order of floats": ("F", lambda f: f.reduce("maxsi"), "reduce: maxsi is not an operation of vector<16xf32>"),
    "order of floats": ("I", lambda i: i.reduce("maxnumf"), "reduce: maxnumf is not an operation of vector<16xi32>"),
    "unknown reduction": ("I", lambda i: i.reduce("product"), "reduce: 'product' is not one of add, maximumf,"),
    "flags of ints": ("I", lambda i: i.reduce("add", "nnan"), "fastmath: vector<16xi32> is not a floating-point type"),
    "unknown predicate": ("i", lambda i: i.compare("less", i), "compare: 'less' is not one of slt, sle, sgt, sge"),
    "a slice": ("F", lambda f: f[0:4], "a value has no items"),
    "an ellipsis": ("F", lambda f: f[..., None], "a value has no items"),
    "items": ("F", lambda f: [*f], "a value has no items"),
    "intrinsic": ("Fi", lambda f, i: intrinsic("dot", [f, i], [F32_VECTOR, BYTES], F32), "dot takes vector<16xf32>,"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_operand_is_refused(code: Code, case: str) -> None:
    letters, operation, problem = WRONG[case]
    operands = values(code, letters)
    with pytest.raises(TypeError, match=problem):
        operation(*operands)
    assert not [line for line in code.lines if "broadcast" not in line], "nothing wrong is written"


FOREIGN: dict[str, tuple[str, Callable[..., object]]] = {
    "sum": ("ff", lambda a, b: a + b),
    "lanes and scalar": ("Ff", lambda a, b: a * b),
    "order": ("ii", lambda a, b: a < b),
    "condition": ("bf", lambda a, b: a.select(b, b)),
    "choices": ("ff", lambda a, b: (a > 0.0).select(a, b)),
    "fma": ("FF", lambda a, b: fma(a, a, b)),
    "intrinsic": ("FF", lambda a, b: intrinsic("dot", [a, b], [F32_VECTOR, F32_VECTOR], F32)),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_values_of_different_kernels_do_not_mix(case: str) -> None:
    letters, operation = FOREIGN[case]
    first, second = (Value(Code(), f"%{letter}", TYPES[letter]) for letter in letters)
    with pytest.raises(TypeError, match="different kernels"):
        operation(first, second)


@pytest.mark.parametrize(("first", "count"), [(16, 1), (99, 1), (-1, 1), (10, 7), (10, 40), (4, 0)])
def test_a_vector_has_no_lanes_beyond_its_own(code: Code, first: int, count: int) -> None:
    (vector,) = values(code, "F")
    with pytest.raises(IndexError, match=rf"part: vector<16xf32> has no lanes {first} to"):
        vector.part(first, count)
    if count == 1:
        with pytest.raises(IndexError, match=rf"lane: vector<16xf32> has no lanes {first} to {first}"):
            vector.lane(first)


def test_new_axes_change_nothing(code: Code) -> None:
    (vector,) = values(code, "F")
    assert vector[:, None] is vector
    assert vector[None, None, :] is vector


RIGHT: dict[str, tuple[str, Callable[..., Value], list[str], Type]] = {
    "sum": ("f", lambda f: f + f, ["arith.addf %f, %f : f32"], F32),
    "difference": ("x", lambda x: x - x, ["arith.subi %x, %x : index"], INDEX),
    "broadcast": (
        "Ff",
        lambda v, f: v * f,
        ["vector.broadcast %f : f32 to vector<16xf32>", "arith.mulf %F, %v1 : vector<16xf32>"],
        F32_VECTOR,
    ),
    "order": ("I", lambda i: i < i, ["arith.cmpi ult, %I, %I : vector<16xi32>"], Type("i1", 16)),
    "float order": ("f", lambda f: f >= f, ["arith.cmpf oge, %f, %f : f32"], I1),
    "signed order": ("i", lambda i: i.compare("sle", i), ["arith.cmpi sle, %i, %i : i32"], I1),
    "choice": ("bf", lambda b, f: b.select(f, f), ["arith.select %b, %f, %f : f32"], F32),
    "smaller": ("x", lambda x: x.minimum(x), ["arith.minui %x, %x : index"], INDEX),
    "wider": ("i", lambda i: i.astype("i64"), ["arith.extui %i : i32 to i64"], I64),
    "signed": ("i", lambda i: i.astype("f32", signed=True), ["arith.sitofp %i : i32 to f32"], F32),
    "index": ("i", lambda i: i.astype("index", signed=True), ["arith.index_cast %i : i32 to index"], INDEX),
    "words": ("Q", lambda q: q.bitcast("i8"), ["vector.bitcast %Q : vector<4xf32> to vector<16xi8>"], Type("i8", 16)),
    "bits": ("f", lambda f: f.view("i32"), ["arith.bitcast %f : f32 to i32"], I32),
    "lane": ("F", lambda f: f.lane(3), ["vector.extract %F[3] : f32 from vector<16xf32>"], F32),
    "reduced": ("F", lambda f: f.reduce("add"), ["vector.reduction <add>, %F : vector<16xf32> into f32"], F32),
    "same type": ("f", lambda f: f.astype("f32"), [], F32),
    "plus nothing": ("x", lambda x: (x + 0) * 1, [], INDEX),
    "but of other types": ("i", lambda i: i + i * 1, ["arith.muli %i, %v1 : i32", "arith.addi %i, %v2 : i32"], I32),
}


@pytest.mark.parametrize("case", RIGHT)
def test_an_operation_is_a_line(code: Code, case: str) -> None:
    letters, operation, lines, kind = RIGHT[case]
    result = operation(*values(code, letters))
    assert [line.partition(" = ")[2] for line in code.lines] == lines
    assert result.type == kind


def test_numbers_become_constants_of_the_other_operand(code: Code) -> None:
    vector, index = values(code, "Fx")
    assert (2.0 - vector).type == vector.type
    assert (7 - index).type == index.type
    assert code.text().splitlines()[:2] == [
        "%v1 = arith.constant dense<2.00000000000000000e+00> : vector<16xf32>",
        "%v3 = arith.constant 7 : index",
    ]


@pytest.mark.parametrize(
    ("value", "element", "text"),
    [
        (0.1, "f32", "1.00000000000000006e-01"),
        (math.inf, "f32", "0x7F800000"),
        (-math.inf, "f32", "0xFF800000"),
        (-65536, "i32", "-65536"),
        (3.0, "i32", "3"),
        (255, "i8", "255"),
        (-128, "i8", "-128"),
    ],
)
def test_literals(value: float, element: str, text: str) -> None:
    assert literal(value, element) == text


@pytest.mark.parametrize(("value", "element"), [(300, "i8"), (256, "i8"), (-129, "i8"), (1 << 32, "i32"), (2, "i1")])
def test_a_constant_fits_its_type(code: Code, value: int, element: str) -> None:
    with pytest.raises(ValueError, match=f"{value} needs more than the .* bits of {element}"):
        code.constant(value, Type(element))


def test_a_constant_vector_has_a_number_for_each_lane(code: Code) -> None:
    assert vector(code, [3, -1], Type("i8", 2)).type == Type("i8", 2)
    assert "arith.constant dense<[3, -1]> : vector<2xi8>" in code.text()
    for wrong in ([3], [3, -1, 0]):
        with pytest.raises(TypeError, match=f"{len(wrong)} values for vector<2xi8>"):
            vector(code, wrong, Type("i8", 2))


def test_a_sum_of_lanes_has_an_order(code: Code) -> None:
    (vector,) = values(code, "Q")
    assert vector.sum_lanes().type == F32
    assert [line.partition(" = ")[2].partition(" ")[0] for line in code.lines] == [
        *["vector.shuffle", "vector.shuffle", "arith.addf"] * 2,
        "vector.extract",
    ]
