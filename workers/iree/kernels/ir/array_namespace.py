"""An array namespace that writes MLIR: what is defined once for all array libraries, as the code of a kernel.

`workers.sampling.fixed_point` and `workers.sampling.noise` are written against the common part of numpy, jax.numpy and
mlx.core. `Lanes` is one more such namespace, of as much as they use: a `Word` is a scalar or a vector of `LANES`, and
each operation on it a line of `Code`. Integers are unsigned.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.iree.kernels.ir.builder import LANES, Code

BITS = {"i1": 1, "i32": 32, "i64": 64}
_FLOATS = {"add": "addf", "sub": "subf", "mul": "mulf", "div": "divf"}
_INTS = {"add": "addi", "sub": "subi", "mul": "muli"}
_ORDERS = {"lt": ("olt", "ult"), "le": ("ole", "ule"), "gt": ("ogt", "ugt"), "ge": ("oge", "uge"), "eq": ("oeq", "eq")}


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """An SSA value: of each lane of a vector, or a scalar where `lanes` is 0, which spreads where it meets a vector."""

    code: Code
    name: str
    element: str
    lanes: int = 0

    @property
    def type(self) -> str:
        return f"vector<{self.lanes}x{self.element}>" if self.lanes else self.element

    def astype(self, element: str) -> "Word":
        """As another type: numbers keep their value as far as the type has it, a bit becomes 0 or 1."""
        if element == self.element:
            return self
        if self.element == "f32":
            operation = "fptosi"
        elif element == "f32":
            operation = "uitofp"
        else:
            operation = "extui" if BITS[element] > BITS[self.element] else "trunci"
        return self._cast(f"arith.{operation}", element)

    def view(self, element: str) -> "Word":
        """The same bits as another type."""
        return self._cast("arith.bitcast", element)

    def spread(self, lanes: int = LANES) -> "Word":
        """In every lane of a vector."""
        kind = f"vector<{lanes}x{self.element}>"
        return Word(
            self.code, self.code.let(f"vector.broadcast {self.name} : {self.type} to {kind}"), self.element, lanes
        )

    def reduce(self, operation: str, flags: str = "") -> "Word":
        """The lanes as one scalar: "add", "maximumf", ..., perhaps with fast-math flags."""
        fast = f" fastmath<{flags}>" if flags else ""
        text = f"vector.reduction <{operation}>, {self.name}{fast} : {self.type} into {self.element}"
        return Word(self.code, self.code.let(text), self.element)

    def index(self) -> str:
        """A scalar integer as an index."""
        return self.code.let(f"arith.index_castui {self.name} : {self.element} to index")

    def __getitem__(self, _: object) -> "Word":
        """With new axes: a scalar spreads as it is needed."""
        return self

    def __add__(self, other: Any) -> "Word":
        return self._binary("add", other)

    def __sub__(self, other: Any) -> "Word":
        return self._binary("sub", other)

    def __rsub__(self, other: Any) -> "Word":
        return self._constant(other)._binary("sub", self)

    def __mul__(self, other: Any) -> "Word":
        return self._binary("mul", other)

    def __truediv__(self, other: Any) -> "Word":
        return self._binary("div", other)

    def __and__(self, other: Any) -> "Word":
        return self._bits("andi", other)

    def __or__(self, other: Any) -> "Word":
        return self._bits("ori", other)

    def __xor__(self, other: Any) -> "Word":
        return self._bits("xori", other)

    def __lshift__(self, other: Any) -> "Word":
        return self._bits("shli", other)

    def __rshift__(self, other: Any) -> "Word":
        return self._bits("shrui", other)

    def __lt__(self, other: Any) -> "Word":
        return self._compare("lt", other)

    def __le__(self, other: Any) -> "Word":
        return self._compare("le", other)

    def __gt__(self, other: Any) -> "Word":
        return self._compare("gt", other)

    def __ge__(self, other: Any) -> "Word":
        return self._compare("ge", other)

    def equals(self, other: Any) -> "Word":
        return self._compare("eq", other)

    def _binary(self, operation: str, other: Any) -> "Word":
        return self._bits((_FLOATS if self.element == "f32" else _INTS)[operation], other)

    def _bits(self, operation: str, other: Any) -> "Word":
        a, b = self._both(other)
        return Word(self.code, self.code.let(f"arith.{operation} {a.name}, {b.name} : {a.type}"), a.element, a.lanes)

    def _compare(self, order: str, other: Any) -> "Word":
        a, b = self._both(other)
        is_float = a.element == "f32"
        predicate = _ORDERS[order][0 if is_float else 1]
        text = f"arith.cmp{'f' if is_float else 'i'} {predicate}, {a.name}, {b.name} : {a.type}"
        return Word(self.code, self.code.let(text), "i1", a.lanes)

    def _both(self, other: Any) -> tuple["Word", "Word"]:
        other = self._constant(other)
        if self.lanes == other.lanes:
            return self, other
        return (self, other.spread(self.lanes)) if self.lanes else (self.spread(other.lanes), other)

    def _constant(self, value: Any) -> "Word":
        """A number as a value of this one's type."""
        if isinstance(value, Word):
            return value
        text = literal(value, self.element)
        return Word(self.code, self.code.constant(f"{text} : {self.element}"), self.element)

    def _cast(self, operation: str, element: str) -> "Word":
        kind = f"vector<{self.lanes}x{element}>" if self.lanes else element
        return Word(self.code, self.code.let(f"{operation} {self.name} : {self.type} to {kind}"), element, self.lanes)


def literal(value: float, element: str) -> str:
    """A number as MLIR writes it."""
    if element != "f32":
        return str(int(value))
    if math.isinf(value) or math.isnan(value):
        return f"0x{struct.unpack('<I', struct.pack('<f', value))[0]:08X}"
    return f"{value:.17e}"


class Lanes:
    """The namespace: `xp` for what is defined in terms of one, over the lines of one kernel."""

    uint32 = int32 = "i32"
    float32 = "f32"

    def __init__(self, code: Code) -> None:
        self.code = code

    def array(self, value: float, dtype: str) -> Word:
        """A constant."""
        return Word(self.code, self.code.constant(f"{literal(value, dtype)} : {dtype}"), dtype)

    def where(self, condition: Word, yes: Any, no: Any) -> Word:
        words = [each for each in (yes, no) if isinstance(each, Word)]
        element = words[0].element if words else "f32"
        yes, no = (each if isinstance(each, Word) else self.array(each, element) for each in (yes, no))
        lanes = max(condition.lanes, yes.lanes, no.lanes)
        condition, yes, no = (each if each.lanes == lanes else each.spread(lanes) for each in (condition, yes, no))
        mask = f"{condition.type}, " if lanes else ""
        text = f"arith.select {condition.name}, {yes.name}, {no.name} : {mask}{yes.type}"
        return Word(self.code, self.code.let(text), yes.element, lanes)

    def maximum(self, a: Word, b: Any) -> Word:
        """`b` where one of them is not a number."""
        return self.where(a > b, a, b)

    def minimum(self, a: Word, b: Any) -> Word:
        """`b` where one of them is not a number."""
        return self.where(a < b, a, b)

    def loop(
        self,
        low: str,
        high: str,
        carried: Sequence[Word],
        body: Callable[[str, list[Word]], Sequence[Word]],
        step: int = 1,
    ) -> list[Word]:
        """For indices from `low` up to `high`: `body` gets each and the words so far, and gives the next."""

        def words(names: Sequence[str]) -> list[Word]:
            return [self._as(name, of) for name, of in zip(names, carried, strict=True)]

        def turn(index: str, names: list[str]) -> list[str]:
            return [word.name for word in body(index, words(names))]

        return words(self.code.loop(low, high, step, [(word.name, word.type) for word in carried], turn))

    def choose(self, condition: Word, yes: Callable[[], Word], no: Callable[[], Word]) -> Word:
        """`where` for scalars, with only the code of the one that it takes run."""
        code, result = self.code, self.code.name()
        at = len(code.lines)
        code.do("")
        first = yes()
        code.lines[at] = f"{result} = scf.if {condition.name} -> ({first.type}) {{"
        code.do(f"scf.yield {first.name} : {first.type}")
        code.do("} else {")
        code.do(f"scf.yield {no().name} : {first.type}")
        code.do("}")
        return self._as(result, first)

    def _as(self, name: str, of: Word) -> Word:
        return Word(self.code, name, of.element, of.lanes)
