"""Typed SSA values: each operation is a line of MLIR, checked when it is written.

Operators name the operations of the arith and vector dialects. Where one operand is a number it becomes a constant of
the other's type, and a scalar is broadcast where it meets a vector. Any other difference of types raises `TypeError`:
MLIR's verifier would reject the module, far from the line that is wrong.

Integers are unsigned unless `signed` is set, as MLIR's have no sign of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from workers.iree.kernels.ir.literal import Number, literal
from workers.iree.kernels.ir.mlir_lines import MlirLines
from workers.iree.kernels.ir.mlir_types import BITS, INDEX, LANES, Type

Reduction = Literal["add", "maximumf", "maxnumf", "maxsi", "maxui", "minsi", "minui"]
"""The kinds of `vector.reduction` that kernels use: those that end with f are of floats, "add" of all numbers."""
Predicate = Literal["slt", "sle", "sgt", "sge"]
"""The signed predicates of `arith.cmpi`."""
_ORDERS = {"lt": ("olt", "ult"), "le": ("ole", "ule"), "gt": ("ogt", "ugt"), "ge": ("oge", "uge"), "eq": ("oeq", "eq")}
"""The predicates of each comparison: of floats, false where one is NaN, and of unsigned integers."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An SSA value of one type."""

    code: MlirLines
    name: str
    type: Type

    def astype(self, element: str, *, signed: bool = False) -> "Value":
        """Convert each lane: numbers keep their value as far as the type has it, and a bit becomes 0 or 1.

        An integer that is made of a float is signed. Raises `TypeError` between floats and indices.
        """
        source, target = self.type, self.type.of(element)
        if source == target:
            return self
        if "index" in (source.element, element) and (source.is_float or target.is_float):
            raise TypeError(f"astype: {source} cannot become {target}")
        sign = "s" if signed else "u"
        if "index" in (source.element, element):
            operation = "index_cast" if signed else "index_castui"
        elif source.is_float and target.is_float:
            operation = "extf" if target.bits > source.bits else "truncf"
        elif source.is_float:
            operation = "fptosi"
        elif target.is_float:
            operation = f"{sign}itofp"
        else:
            operation = f"ext{sign}i" if target.bits > source.bits else "trunci"
        return self._let(f"arith.{operation} {self.name} : {source} to {target}", target)

    def view(self, element: str) -> "Value":
        """Return the same bits as another element type of the same size."""
        target = self.type.of(element)
        self._check_bits("view", target)
        return self._let(f"arith.bitcast {self.name} : {self.type} to {target}", target)

    def bitcast(self, element: str) -> "Value":
        """Return a vector's bits as a vector of another element type, with more or fewer lanes."""
        self._check_vector("bitcast")
        target = Type(element, self.type.bits // BITS[element])
        self._check_bits("bitcast", target)
        return self._let(f"vector.bitcast {self.name} : {self.type} to {target}", target)

    def broadcast(self, lanes: int = LANES) -> "Value":
        """Return a scalar in every lane of a vector."""
        if self.type.lanes:
            raise TypeError(f"broadcast: {self.type} is not a scalar")
        target = Type(self.type.element, lanes)
        return self._let(f"vector.broadcast {self.name} : {self.type} to {target}", target)

    def reduce(self, operation: Reduction, flags: str = "") -> "Value":
        """Reduce the lanes to a scalar, those of floats perhaps with fast-math flags."""
        self._check_vector("reduce")
        _check_name("reduce", operation, get_args(Reduction))
        if operation != "add" and operation.endswith("f") != self.type.is_float:
            raise TypeError(f"reduce: {operation} is not an operation of {self.type}")
        if flags:
            self._check_float("fastmath")
        fast, target = f" fastmath<{flags}>" if flags else "", Type(self.type.element)
        return self._let(f"vector.reduction <{operation}>, {self.name}{fast} : {self.type} into {target}", target)

    def lane(self, number: int) -> "Value":
        """Return one lane. Raises `IndexError`."""
        self._check_lanes("lane", number, 1)
        target = Type(self.type.element)
        return self._let(f"vector.extract {self.name}[{number}] : {target} from {self.type}", target)

    def part(self, first: int, count: int) -> "Value":
        """Return `count` lanes from `first` on. Raises `IndexError`."""
        self._check_lanes("part", first, count)
        return self._shuffle(self, range(first, first + count))

    def shuffle(self, numbers: Sequence[int]) -> "Value":
        """Return these lanes in this order. Raises `IndexError`."""
        self._check_lanes("shuffle", min(numbers), max(numbers) - min(numbers) + 1)
        return self._shuffle(self, numbers)

    def concatenate(self, other: "Value") -> "Value":
        """Return the lanes of this vector, then those of another of the same type."""
        self._check_vector("concatenate")
        self._check_same("concatenate", other)
        return self._shuffle(other, range(2 * self.type.lanes))

    def sum_lanes(self) -> "Value":
        """Return the sum of the lanes, halves onto halves: an order that no compiler chooses."""
        return self._fold(lambda low, high: low + high)

    def max_lane(self) -> "Value":
        """Return the largest of the lanes."""
        return self._fold(lambda low, high: low.maximum(high))

    def select(self, yes: "Value | Number", no: "Value | Number") -> "Value":
        """Return `yes` where this bit is set and `no` elsewhere, lane by lane."""
        if self.type.element != "i1":
            raise TypeError(f"select: the condition is {self.type}, not i1")
        example = yes if isinstance(yes, Value) else no
        if not isinstance(example, Value):
            raise TypeError("select: one of the two must be a value")
        a, b = (example._operand(each) for each in (yes, no))
        self._check_owner("select", example)
        lanes = max(self.type.lanes, a.type.lanes, b.type.lanes)
        condition, a, b = (each if each.type.lanes == lanes else each.broadcast(lanes) for each in (self, a, b))
        a._check_same("select", b)
        mask = f"{condition.type}, " if lanes else ""
        return self._let(f"arith.select {condition.name}, {a.name}, {b.name} : {mask}{a.type}", a.type)

    def maximum(self, other: "Value | Number", *, signed: bool = False) -> "Value":
        """Return the larger, lane by lane; of floats `other` where one is NaN.

        That is one instruction for floats, as `arith.maxnumf` is not.
        """
        if not self.type.is_float:
            return self._binary("maxsi" if signed else "maxui", other)
        a, b = self.matched("maximum", other)
        return (a > b).select(a, b)

    def minimum(self, other: "Value | Number", *, signed: bool = False) -> "Value":
        """Return the smaller, lane by lane; of floats `other` where one is NaN."""
        if not self.type.is_float:
            return self._binary("minsi" if signed else "minui", other)
        a, b = self.matched("minimum", other)
        return (a < b).select(a, b)

    def maxnum(self, other: "Value | Number") -> "Value":
        """Return the larger float, lane by lane, and the number where the other is NaN."""
        self._check_float("maxnum")
        return self._binary("maxnumf", other)

    def shift_right_signed(self, bits: "Value | int") -> "Value":
        """Shift right and copy the sign."""
        return self._integer("shrsi", bits)

    def compare(self, predicate: Predicate, other: "Value | Number") -> "Value":
        """Compare signed integers."""
        _check_name("compare", predicate, get_args(Predicate))
        if self.type.is_float:
            raise TypeError(f"compare: {self.type} is not an integer type")
        a, b = self.matched(predicate, other)
        return self._let(f"arith.cmpi {predicate}, {a.name}, {b.name} : {a.type}", a.type.of("i1"))

    def equals(self, other: "Value | Number") -> "Value":
        return self._compare("eq", other)

    def matched(self, operation: str, other: "Value | Number") -> tuple["Value", "Value"]:
        """Return this value and another or a number as operands of one type. Raises `TypeError`."""
        if isinstance(other, Value):
            self._check_owner(operation, other)
        a, b = self, self._operand(other)
        if a.type.lanes and not b.type.lanes:
            b = b.broadcast(a.type.lanes)
        elif b.type.lanes and not a.type.lanes:
            a = a.broadcast(b.type.lanes)
        a._check_same(operation, b)
        return a, b

    def __getitem__(self, axes: object) -> "Value":
        """Return the value itself for new axes (`value[:, None]`): a scalar is broadcast where it meets a vector."""
        if not isinstance(axes, tuple) or any(axis is not None and axis != slice(None) for axis in axes):
            raise TypeError("a value has no items; `lane` and `part` return some of a vector's")
        return self

    def __add__(self, other: "Value | Number") -> "Value":
        return self if self._is_index_and(other, 0) else self._arithmetic("add", other)

    def __radd__(self, other: Number) -> "Value":
        return self if self._is_index_and(other, 0) else self._operand(other)._arithmetic("add", self)

    def __sub__(self, other: "Value | Number") -> "Value":
        return self if self._is_index_and(other, 0) else self._arithmetic("sub", other)

    def __rsub__(self, other: Number) -> "Value":
        return self._operand(other)._arithmetic("sub", self)

    def __mul__(self, other: "Value | Number") -> "Value":
        return self if self._is_index_and(other, 1) else self._arithmetic("mul", other)

    def __rmul__(self, other: Number) -> "Value":
        return self if self._is_index_and(other, 1) else self._operand(other)._arithmetic("mul", self)

    def __truediv__(self, other: "Value | Number") -> "Value":
        self._check_float("/")
        return self._binary("divf", other)

    def __rtruediv__(self, other: Number) -> "Value":
        return self._operand(other) / self

    def __floordiv__(self, other: "Value | int") -> "Value":
        return self if self._is_index_and(other, 1) else self._integer("divui", other)

    def __mod__(self, other: "Value | int") -> "Value":
        return self._operand(0) if self._is_index_and(other, 1) else self._integer("remui", other)

    def __neg__(self) -> "Value":
        self._check_float("-")
        return self._let(f"arith.negf {self.name} : {self.type}", self.type)

    def __and__(self, other: "Value | int") -> "Value":
        return self._integer("andi", other)

    def __or__(self, other: "Value | int") -> "Value":
        return self._integer("ori", other)

    def __xor__(self, other: "Value | int") -> "Value":
        return self._integer("xori", other)

    def __lshift__(self, other: "Value | int") -> "Value":
        return self._integer("shli", other)

    def __rshift__(self, other: "Value | int") -> "Value":
        return self._integer("shrui", other)

    def __lt__(self, other: "Value | Number") -> "Value":
        return self._compare("lt", other)

    def __le__(self, other: "Value | Number") -> "Value":
        return self._compare("le", other)

    def __gt__(self, other: "Value | Number") -> "Value":
        return self._compare("gt", other)

    def __ge__(self, other: "Value | Number") -> "Value":
        return self._compare("ge", other)

    def _is_index_and(self, other: Any, number: int) -> bool:
        """An index that is added to 0 or multiplied by 1 is not worth an operation."""
        return self.type == INDEX and isinstance(other, int) and other == number

    def _arithmetic(self, operation: str, other: "Value | Number") -> "Value":
        return self._binary(operation + ("f" if self.type.is_float else "i"), other)

    def _integer(self, operation: str, other: "Value | Number") -> "Value":
        if self.type.is_float:
            raise TypeError(f"{operation}: {self.type} is not an integer type")
        return self._binary(operation, other)

    def _binary(self, operation: str, other: "Value | Number") -> "Value":
        a, b = self.matched(operation, other)
        return self._let(f"arith.{operation} {a.name}, {b.name} : {a.type}", a.type)

    def _compare(self, order: str, other: "Value | Number") -> "Value":
        a, b = self.matched(order, other)
        kind, predicate = ("f", _ORDERS[order][0]) if a.type.is_float else ("i", _ORDERS[order][1])
        return self._let(f"arith.cmp{kind} {predicate}, {a.name}, {b.name} : {a.type}", a.type.of("i1"))

    def _shuffle(self, other: "Value", numbers: Sequence[int]) -> "Value":
        kept, target = ", ".join(map(str, numbers)), Type(self.type.element, len(numbers))
        return self._let(f"vector.shuffle {self.name}, {other.name} [{kept}] : {self.type}, {self.type}", target)

    def _fold(self, join: Callable[["Value", "Value"], "Value"]) -> "Value":
        """Join the lanes to one, halves with halves."""
        vector, lanes = self, self.type.lanes
        while lanes > 1:
            lanes //= 2
            vector = join(vector.part(0, lanes), vector.part(lanes, lanes))
        return vector.lane(0)

    def _operand(self, other: "Value | Number") -> "Value":
        """Return a number as a constant of this value's type."""
        return other if isinstance(other, Value) else constant(self.code, other, self.type)

    def _check_same(self, operation: str, other: "Value") -> None:
        self._check_owner(operation, other)
        if self.type != other.type:
            raise TypeError(f"{operation}: the operands are {self.type} and {other.type}")

    def _check_owner(self, operation: str, other: "Value") -> None:
        if self.code is not other.code:
            raise TypeError(f"{operation}: {self.name} and {other.name} are values of different kernels")

    def _check_float(self, operation: str) -> None:
        if not self.type.is_float:
            raise TypeError(f"{operation}: {self.type} is not a floating-point type")

    def _check_vector(self, operation: str) -> None:
        if not self.type.lanes:
            raise TypeError(f"{operation}: {self.type} is not a vector")

    def _check_lanes(self, operation: str, first: int, count: int) -> None:
        self._check_vector(operation)
        if not 0 <= first < first + count <= self.type.lanes:
            raise IndexError(f"{operation}: {self.type} has no lanes {first} to {first + count - 1}")

    def _check_bits(self, operation: str, target: Type) -> None:
        if self.type.bits != target.bits or "index" in (self.type.element, target.element):
            raise TypeError(f"{operation}: {self.type} has other bits than {target}")

    def _let(self, expression: str, type: Type) -> "Value":
        return Value(self.code, self.code.let(expression), type)


def constant(code: MlirLines, value: Number, type: Type) -> Value:
    """Return a constant scalar, or a vector with the number in every lane."""
    text = literal(value, type.element)
    text = f"dense<{text}> : {type}" if type.lanes else f"{text} : {type}"
    return Value(code, code.constant_name(text), type)


def vector(code: MlirLines, values: Sequence[int], type: Type) -> Value:
    """Return a constant vector of integers, one for each lane of `type`."""
    if len(values) != type.lanes:
        raise TypeError(f"vector: {len(values)} values for {type}")
    numbers = ", ".join(literal(value, type.element) for value in values)
    return Value(code, code.constant_name(f"dense<[{numbers}]> : {type}"), type)


def _check_name(operation: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise TypeError(f"{operation}: {name!r} is not one of {', '.join(names)}")
