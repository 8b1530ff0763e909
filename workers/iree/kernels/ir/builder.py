"""The code of one workgroup: typed values, control flow and local memory.

Nothing in it is left for the compiler to tile, vectorize or reorder, so two graphs with the same body compute the same
bits.
"""

from collections.abc import Callable, Mapping, Sequence

from workers.iree.kernels.ir.literal import Number
from workers.iree.kernels.ir.memory import Index, Memory, memref
from workers.iree.kernels.ir.mlir_lines import MlirLines
from workers.iree.kernels.ir.mlir_types import F32_VECTOR, I32, INDEX, LANES, Type
from workers.iree.kernels.ir.value import Value, constant


class Code(MlirLines):
    """The body of one workgroup, as methods that append to it. Regions are functions that append their operations."""

    def constant(self, value: Number, type: Type) -> Value:
        """Return a constant scalar, or a vector with the number in every lane."""
        return constant(self, value, type)

    def index(self, value: Index) -> Value:
        """Return a constant index; one that is a value already stays."""
        return value if isinstance(value, Value) else constant(self, value, INDEX)

    def floats(self, value: float) -> Value:
        """Return a vector with the same float32 in every lane."""
        return constant(self, value, F32_VECTOR)

    def iota(self, start: int = 0, lanes: int = LANES) -> Value:
        """Return a vector of consecutive int32 from `start` on."""
        kind, numbers = Type("i32", lanes), ", ".join(map(str, range(start, start + lanes)))
        return Value(self, self.constant_name(f"dense<[{numbers}]> : {kind}"), kind)

    def loop(
        self,
        low: Index,
        high: Index,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
        step: int = 1,
    ) -> list[Value]:
        """Loop from `low` to below `high` (`scf.for`) and return the values that the last turn gave.

        `body` gets each index with the values so far, first `carried`, and returns the next ones.
        """
        index, types = self._value(INDEX), ", ".join(str(each.type) for each in carried)
        values = [self._value(each.type) for each in carried]
        start = ", ".join(f"{value.name} = {each.name}" for value, each in zip(values, carried, strict=True))
        result, head = self.name(), self._for(index, low, high, step)
        self.do(f"{result}:{len(carried)} = {head} iter_args({start}) -> ({types}) {{")
        self._yield("loop", body(index, values), values)
        self.do("}")
        return [Value(self, f"{result}#{i}", each.type) for i, each in enumerate(carried)]

    def repeat(self, low: Index, high: Index, body: Callable[[Value], None], step: int = 1) -> None:
        """Loop over indices from `low` to below `high` without values that are carried."""
        index = self._value(INDEX)
        self.do(f"{self._for(index, low, high, step)} {{")
        body(index)
        self.do("}")

    def loop_while(
        self,
        start: Sequence[Value],
        condition: Callable[[list[Value]], tuple[Value, Sequence[Value]]],
        body: Callable[[list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """Loop as long as a condition holds (`scf.while`) and return the values that it passed last.

        `condition` gets the values, first `start`, and returns a bit and what it passes to `body`, which returns the
        next values.
        """
        values = [self._value(each.type) for each in start]
        result, at = self.name(), len(self.lines)
        self.do("")
        goes_on, passed = condition(values)
        if goes_on.type != Type("i1"):
            raise TypeError(f"loop_while: the condition is {goes_on.type}, not i1")
        inputs, outputs = (", ".join(str(each.type) for each in some) for some in (values, passed))
        carried = ", ".join(f"{value.name} = {each.name}" for value, each in zip(values, start, strict=True))
        count = f":{len(passed)}" if len(passed) > 1 else ""
        returned = f"({outputs})" if len(passed) > 1 else outputs
        self.lines[at] = f"{result}{count} = scf.while ({carried}) : ({inputs}) -> {returned} {{"
        self.do(f"scf.condition({goes_on.name}) {', '.join(each.name for each in passed)} : {outputs}")
        given = [self._value(each.type) for each in passed]
        self.do(f"}} do {{\n^bb0({', '.join(f'{each.name}: {each.type}' for each in given)}):")
        self._yield("loop_while", body(given), values)
        self.do("}")
        return [Value(self, f"{result}#{i}", each.type) for i, each in enumerate(passed)]

    def when(self, condition: Value, body: Callable[[], None]) -> None:
        """Run `body` if a bit is set."""
        self.begin_when(condition)
        body()
        self.end_when()

    def begin_when(self, condition: Value) -> None:
        """Run what is appended before `end_when` if a bit is set."""
        if condition.type != Type("i1"):
            raise TypeError(f"when: the condition is {condition.type}, not i1")
        self.do(f"scf.if {condition.name} {{")

    def end_when(self) -> None:
        self.do("}")

    def choose(self, condition: Value, yes: Callable[[], Value], no: Callable[[], Value]) -> Value:
        """Return the value of `yes` if a bit is set, otherwise that of `no`; the other one's code is not run."""
        result, at = self.name(), len(self.lines)
        self.do("")
        first = yes()
        self.lines[at] = f"{result} = scf.if {condition.name} -> ({first.type}) {{"
        self._yield("choose", [first], [first])
        self.do("} else {")
        self._yield("choose", [no()], [first])
        self.do("}")
        return Value(self, result, first.type)

    def switch(self, number: Value, cases: Mapping[int, Callable[[], None]], default: Callable[[], None]) -> None:
        """Run the case of an index, or the default."""
        if number.type != INDEX:
            raise TypeError(f"switch: the number is {number.type}, not index")
        self.do(f"scf.index_switch {number.name}")
        for case, body in cases.items():
            self.do(f"case {case} {{")
            body()
            self.do("scf.yield\n}")
        self.do("default {")
        default()
        self.do("}")

    def allocate(self, shape: tuple[int, ...], element: str) -> Memory:
        """Allocate memory on the workgroup's stack; call it outside of loops."""
        properties = "<{alignment = 64 : i64, operandSegmentSizes = array<i32: 0, 0>}>"
        name = self.let(f'"memref.alloca"() {properties} : () -> {memref(shape, element)}')
        return Memory(self, name, shape, element)

    def intrinsic_statement(self, name: str, *operands: int) -> None:
        """Call an intrinsic of LLVM that takes constants, int32, and has no result."""
        names = ", ".join(self.constant(each, I32).name for each in operands)
        self.do(f'llvm.call_intrinsic "{name}"({names}) : ({", ".join(["i32"] * len(operands))}) -> ()')

    def _for(self, index: Value, low: Index, high: Index, step: int) -> str:
        ends = [self.index(each) for each in (low, high)]
        for each in ends:
            if each.type != INDEX:
                raise TypeError(f"a loop's end is {each.type}, not index")
        return f"scf.for {index.name} = {ends[0].name} to {ends[1].name} step {self.index(step).name}"

    def _yield(self, operation: str, values: Sequence[Value], like: Sequence[Value]) -> None:
        types = [each.type for each in like]
        if [each.type for each in values] != types:
            given = ", ".join(str(each.type) for each in values)
            raise TypeError(f"{operation}: the body gives ({given}), not ({', '.join(map(str, types))})")
        self.do(f"scf.yield {', '.join(each.name for each in values)} : {', '.join(map(str, types))}")

    def _value(self, type: Type) -> Value:
        return Value(self, self.name(), type)
