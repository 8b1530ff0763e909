"""A builder of MLIR text for dispatches whose every instruction is chosen here.

A `Code` is the body of one workgroup in the arith, scf, tensor, memref and vector dialects. Nothing in it is left for
the compiler to tile, vectorize or reorder, so two graphs with the same body compute the same bits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

LANES = 16
"""Lanes of a vector: one AVX-512 register of float32; narrower machines use several registers."""
LINE = 64
"""Bytes of a line of the cache."""
SIZES = {"f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i8": 1}
"""Bytes of an element."""
FLOATS = f"vector<{LANES}xf32>"
ELEMENT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "int32": "i32", "uint32": "ui32"}
"""MLIR's names of the element types."""


def tensor(shape: Sequence[int | str], element: str) -> str:
    """`tensor((2, "?"), "f32")` -> `tensor<2x?xf32>`."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA tensor, or a piece of memory: its name, and what its type is made of."""

    name: str
    shape: tuple[int, ...]
    element: str
    memory: bool = False

    @property
    def type(self) -> str:
        kind = tensor(self.shape, self.element)
        return kind.replace("tensor", "memref", 1) if self.memory else kind


@dataclass(slots=True)
class Code:
    """Lines of SSA form. Constants are made once and stand before everything else."""

    lines: list[str] = field(default_factory=list)
    _constants: dict[str, str] = field(default_factory=dict)
    _count: int = 0

    def name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def let(self, expression: str) -> str:
        """Append an operation with one result and return the result's name."""
        name = self.name()
        self.lines.append(f"{name} = {expression}")
        return name

    def do(self, statement: str) -> None:
        """Append an operation without results."""
        self.lines.append(statement)

    def constant(self, value: str) -> str:
        """`constant("0.0 : f32")`."""
        if value not in self._constants:
            self._constants[value] = self.name()
        return self._constants[value]

    def index(self, value: int) -> str:
        return self.constant(f"{value} : index")

    def floats(self, value: float | str) -> str:
        """A constant vector with the same float32 in every lane; a string is taken as MLIR writes it."""
        return self.constant(f"dense<{_literal(value)}> : {FLOATS}")

    def add(self, a: str, b: str | int) -> str:
        """The sum of two indices."""
        return a if b == 0 else self.let(f"arith.addi {a}, {self.index(b) if isinstance(b, int) else b} : index")

    def mul(self, a: str, b: int) -> str:
        """The product of an index and a number."""
        return a if b == 1 else self.let(f"arith.muli {a}, {self.index(b)} : index")

    def div(self, a: str, b: int) -> str:
        return a if b == 1 else self.quotient(a, self.index(b))

    def rem(self, a: str, b: int) -> str:
        return self.index(0) if b == 1 else self.remainder(a, self.index(b))

    def quotient(self, a: str, b: str) -> str:
        """Of two indices."""
        return self.let(f"arith.divui {a}, {b} : index")

    def remainder(self, a: str, b: str) -> str:
        return self.let(f"arith.remui {a}, {b} : index")

    def least(self, a: str, b: str) -> str:
        return self.let(f"arith.minui {a}, {b} : index")

    def most(self, a: str, b: str) -> str:
        return self.let(f"arith.maxui {a}, {b} : index")

    def minus(self, a: str, b: str | int) -> str:
        """The difference of two indices."""
        return a if b == 0 else self.let(f"arith.subi {a}, {self.index(b) if isinstance(b, int) else b} : index")

    def number(self, index: str) -> str:
        """An index as an int32."""
        return self.let(f"arith.index_cast {index} : index to i32")

    def spread(self, scalar: str, element: str = "f32", lanes: int = LANES) -> str:
        """A scalar in every lane."""
        return self.let(f"vector.broadcast {scalar} : {element} to vector<{lanes}x{element}>")

    def read(self, source: Value, at: Sequence[str], lanes: int = LANES) -> str:
        """`lanes` neighbours along the last dimension."""
        if source.memory:
            kind = f"vector<{lanes}x{source.element}>"
            return self.let(f"vector.load {source.name}[{', '.join(at)}] : {source.type}, {kind}")
        zero = self.constant(f"{'0' if source.element == 'i32' else '0.0'} : {source.element}")
        kind = f"vector<{lanes}x{source.element}>"
        where = ", ".join(at)
        return self.let(
            f"vector.transfer_read {source.name}[{where}], {zero} {{in_bounds = [true]}} : {source.type}, {kind}"
        )

    def write(self, vector: str, lanes: int, target: Value, at: Sequence[str]) -> Value:
        """`target` with `lanes` neighbours replaced."""
        kind = f"vector<{lanes}x{target.element}>"
        where = ", ".join(at)
        text = f"vector.transfer_write {vector}, {target.name}[{where}] {{in_bounds = [true]}} : {kind}, {target.type}"
        return Value(self.let(text), target.shape, target.element)

    def put(self, vector: str, lanes: int, target: Value, at: Sequence[str]) -> None:
        """Replace `lanes` neighbours in memory."""
        kind = f"vector<{lanes}x{target.element}>"
        self.do(f"vector.store {vector}, {target.name}[{', '.join(at)}] : {target.type}, {kind}")

    def set(self, scalar: str, target: Value, at: Sequence[str]) -> None:
        """Replace one element in memory."""
        self.do(f"memref.store {scalar}, {target.name}[{', '.join(at)}] : {target.type}")

    def prefetch(self, source: Value, at: Sequence[str], locality: int = 3) -> None:
        """Have a line of memory brought to the first cache, with a locality of 2 to the second, of 0 to the first for
        one use; one that is out of bounds is not."""
        self.do(f"memref.prefetch {source.name}[{', '.join(at)}], read, locality<{locality}>, data : {source.type}")

    def room(self, shape: tuple[int, ...], element: str) -> Value:
        """Memory of the workgroup's own, on the stack: to be asked for outside of loops."""
        kind = tensor(shape, element).replace("tensor", "memref", 1)
        properties = "<{alignment = 64 : i64, operandSegmentSizes = array<i32: 0, 0>}>"
        return Value(self.let(f'"memref.alloca"() {properties} : () -> {kind}'), shape, element, memory=True)

    def extract(self, source: Value, at: Sequence[str]) -> str:
        kind = "memref.load" if source.memory else "tensor.extract"
        return self.let(f"{kind} {source.name}[{', '.join(at)}] : {source.type}")

    def extract_index(self, source: Value, at: Sequence[str]) -> str:
        """An int32 element as an index."""
        return self.let(f"arith.index_cast {self.extract(source, at)} : i32 to index")

    def empty(self, shape: tuple[int, ...], element: str) -> Value:
        return Value(self.let(f"tensor.empty() : {tensor(shape, element)}"), shape, element)

    def loop(
        self,
        low: str,
        high: str,
        step: int,
        carried: Sequence[tuple[str, str]],
        body: Callable[[str, list[str]], Sequence[str]],
    ) -> list[str]:
        """`scf.for`: `carried` are (initial value, type); `body` gets the index and their names and gives the next."""
        index, names = self.name(), [self.name() for _ in carried]
        types = ", ".join(kind for _, kind in carried)
        head = f"scf.for {index} = {low} to {high} step {self.index(step)}"
        start = ", ".join(f"{name} = {initial}" for name, (initial, _) in zip(names, carried, strict=True))
        result = self.name()
        self.do(f"{result}:{len(carried)} = {head} iter_args({start}) -> ({types}) {{")
        following = body(index, names)
        self.do(f"scf.yield {', '.join(following)} : {types}")
        self.do("}")
        return [f"{result}#{i}" for i in range(len(carried))]

    def repeat(self, low: str, high: str, step: int, body: Callable[[str], None]) -> None:
        """A loop that carries nothing."""
        index = self.name()
        self.do(f"scf.for {index} = {low} to {high} step {self.index(step)} {{")
        body(index)
        self.do("}")

    def switch(self, index: str, cases: Mapping[int, Callable[[], None]], default: Callable[[], None]) -> None:
        """Run the case of this number, or the default."""
        self.do(f"scf.index_switch {index}")
        for number, body in cases.items():
            self.do(f"case {number} {{")
            body()
            self.do("scf.yield\n}")
        self.do("default {")
        default()
        self.do("}")

    def carry(self, low: str, high: str, step: int, target: Value, body: Callable[[str, Value], Value]) -> Value:
        """A loop that carries one tensor."""

        def turn(index: str, names: list[str]) -> list[str]:
            return [body(index, Value(names[0], target.shape, target.element)).name]

        (name,) = self.loop(low, high, step, [(target.name, target.type)], turn)
        return Value(name, target.shape, target.element)

    def part(self, vector: str, lanes: int, element: str, first: int, count: int) -> str:
        """`count` lanes of a vector from `first` on."""
        kept = ", ".join(map(str, range(first, first + count)))
        kind = f"vector<{lanes}x{element}>"
        return self.let(f"vector.shuffle {vector}, {vector} [{kept}] : {kind}, {kind}")

    def sum_lanes(self, vector: str, lanes: int = LANES) -> str:
        """The sum of a float32 vector's lanes, halves onto halves: an order that no compiler chooses."""
        return self._fold(
            vector, lanes, lambda low, high, half: self.let(f"arith.addf {low}, {high} : vector<{half}xf32>")
        )

    def greater(self, a: str, b: str, lanes: int = LANES) -> str:
        """Lane by lane the greater, and `b` where one is not a number: one instruction, as `arith.maxnumf` is not."""
        kind = f"vector<{lanes}xf32>"
        above = self.let(f"arith.cmpf ogt, {a}, {b} : {kind}")
        return self.let(f"arith.select {above}, {a}, {b} : vector<{lanes}xi1>, {kind}")

    def greatest_lane(self, vector: str, lanes: int = LANES) -> str:
        return self._fold(vector, lanes, self.greater)

    def _fold(self, vector: str, lanes: int, join: Callable[[str, str, int], str]) -> str:
        """A vector's lanes joined to one float32, halves with halves."""
        while lanes > 1:
            half = lanes // 2
            low, high = (self.part(vector, lanes, "f32", at, half) for at in (0, half))
            vector, lanes = join(low, high, half), half
        return self.let(f"vector.extract {vector}[0] : f32 from vector<1xf32>")

    def text(self) -> str:
        heads = [f"{name} = arith.constant {value}" for value, name in self._constants.items()]
        return "\n".join([*heads, *self.lines])


def _literal(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.9e}"
