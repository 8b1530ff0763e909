"""The instructions of each kind of CPU that multiply quantized weights by quantized rows.

A product takes a *dot* at a time: the levels of `DOT_INPUTS` neighbouring inputs, 8 bits or 4 and unsigned, of as many
outputs as a register has lanes, times the integers of a row for these inputs, signed and of 8 bits. All sums are exact,
so every CPU computes the same ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from workers.iree.kernels.ir.mlir_types import LANES, Type
from workers.iree.kernels.ir.operations import intrinsic_by_register
from workers.iree.kernels.ir.value import Value, vector
from workers.iree.kernels.matmul.packing import DOT_INPUTS


@dataclass(frozen=True, slots=True)
class ByteShuffle:
    """An instruction that looks up the bytes of a register in tables of 16 bytes, which each 128 bits of one have."""

    name: str
    """LLVM's intrinsic, whose operands are the tables and the numbers of entries."""
    register: Type
    """int8: those of a register."""

    def look_up(self, table: Sequence[int], numbers: Value) -> Value:
        """Return the entries of a table of 16 bytes that have these numbers, int8 from 0 to 15."""
        lanes = self.register.lanes
        tables = vector(numbers.code, [*table] * (lanes // len(table)), self.register)
        return intrinsic_by_register(self.name, [tables, numbers], [self.register] * 2, self.register, numbers.type)


class IntegerDot(Protocol):
    """The dot products of one kind of CPU, for levels of one width."""

    @property
    def lanes(self) -> int:
        """Outputs of a register of sums."""

    def together(self, rows: int) -> int:
        """Return how many registers of sums are summed side by side for each row of a block of so many; the others of a
        tile follow after a group."""

    @property
    def max_height(self) -> int:
        """Rows of a block whose sums stay in registers beside what they are made of."""

    @property
    def pairs(self) -> bool:
        """A word of a row holds two integers as int16, those of even inputs before those of odd ones, instead of four
        as int8."""

    @property
    def offset(self) -> int:
        """The number that is subtracted from levels before they are multiplied, as some instructions take signed ones
        only."""

    @property
    def row_pairs(self) -> "RowPairs | None":
        """The dot products for two rows at a time, where there are instructions for them."""

    @property
    def looped(self) -> bool:
        """Dots are a loop in the kernel; otherwise their code is repeated for each dot of a group."""

    @property
    def narrow_dots(self) -> int:
        """Dots that a sum of int16 holds before `widen` must make it int32, in a loop; 0 where sums are int32."""

    @property
    def begins(self) -> bool:
        """Sums may begin with another number than 0."""

    @property
    def several_tiles(self) -> bool:
        """There are registers to multiply many rows by several tiles at once."""

    @property
    def shuffle(self) -> ByteShuffle | None:
        """Look-ups of bytes, where there is an instruction for them."""

    @property
    def sum_type(self) -> Type:
        """The type of sums."""

    def operands(self, levels: Value) -> list[Value]:
        """Return a dot's levels, int8 [4 * lanes], in the form that is multiplied by every row."""

    def add(self, total: Value, levels: Sequence[Value], words: Sequence[Value]) -> Value:
        """Return sums plus the products of a dot: `words` are those of the row, int32."""

    def widen(self, total: Value) -> Value:
        """Return sums as int32 [lanes]."""


class RowPairs(Protocol):
    """Dot products of `2 * DOT_INPUTS` inputs for two rows at a time, for levels of either width."""

    @property
    def sum_type(self) -> Type:
        """The type of the sums of two rows."""

    def operands(self, low: Value, high: Value) -> Value:
        """Return the levels of two neighbouring dots, int8 [64] each, in the form that is multiplied by every pair."""

    def add(self, total: Value, levels: Value, words: Sequence[Value]) -> Value:
        """Return sums plus the products of two dots: `words` are those of either row, int32 [2]."""

    def rows(self, total: Value) -> tuple[Value, Value]:
        """Return the sums of either row, int32 [16]."""


class Int32Sums:
    """Sums that need not be widened, of levels that are multiplied as they are."""

    __slots__ = ()
    lanes: int
    pairs: ClassVar[bool] = False
    offset: ClassVar[int] = 0
    row_pairs: ClassVar[RowPairs | None] = None
    looped: ClassVar[bool] = False
    narrow_dots: ClassVar[int] = 0
    begins: ClassVar[bool] = False
    several_tiles: ClassVar[bool] = False
    shuffle: ClassVar[ByteShuffle | None] = None

    @property
    def sum_type(self) -> Type:
        return Type("i32", self.lanes)

    def operands(self, levels: Value) -> list[Value]:
        return [levels]

    def widen(self, total: Value) -> Value:
        return total


@dataclass(frozen=True, slots=True)
class PlainDot(Int32Sums):
    """Any CPU: multiplications of int32, which the compiler chooses instructions for."""

    lanes: ClassVar[int] = LANES  # type: ignore[misc]
    begins: ClassVar[bool] = True
    max_height: ClassVar[int] = 8

    def together(self, rows: int) -> int:
        return 1

    def add(self, total: Value, levels: Sequence[Value], words: Sequence[Value]) -> Value:
        (level,), (word,) = levels, words
        four = level.bitcast("i32")
        for number in range(DOT_INPUTS):
            one = (four >> 8 * number) & 255
            signed = (word << 24 - 8 * number).shift_right_signed(24)
            total = total + one * signed.broadcast()
        return total
