"""The rows of each expert of a mixture; `router` chooses the experts of each row.

A *pair* is a row and one of its experts; pair `row * per_token + i` is the row's i-th choice. Pairs are grouped by
expert, so that an expert's weights are read once for all rows that chose it and not at all where none did.
"""

from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Experts
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.live_rows import live_rows
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import I32, LANES
from workers.iree.kernels.ir.value import Value


@dataclass(frozen=True, slots=True)
class Mixture:
    """The sizes of one step's mixture."""

    rows: int
    hidden: int
    """Width of the rows that experts compute."""
    experts: Experts

    @property
    def pairs(self) -> int:
        return self.rows * self.experts.per_token

    @property
    def groups(self) -> int:
        """Experts that may be chosen in one step."""
        return min(self.pairs, self.experts.count)

    @property
    def lists(self) -> dict[str, int]:
        """The names and sizes of what `group` gives."""
        return {"order": self.pairs, "chosen": self.groups + 1, "starts": self.groups + 1}

    @property
    def up_tiles(self) -> int:
        """Tiles of one half of an expert's first matrix, of which there are `Experts.halves`."""
        return self.experts.ffn // LANES

    @property
    def down_tiles(self) -> int:
        return self.hidden // LANES

    def take_lists(self, kernel: Kernel) -> list[Memory]:
        """Take what `group` gives as the next inputs of a kernel."""
        return [kernel.input(name, (size,), "i32") for name, size in self.lists.items()]

    def take_bias(self, kernel: Kernel, outputs: int) -> Memory | None:
        """Take the biases of all experts as the next input of a kernel, if there are any: so many of each."""
        return kernel.input("bias", (self.experts.count * outputs,), "f32") if self.experts.biases else None


def group(name: str, m: Mixture, *, live: bool = False) -> str:
    """Experts of the pairs int32 [rows, per_token] (, live i32 [1]) -> the pairs by expert int32 [pairs], the experts
    that were chosen int32 [groups + 1], and where in the pairs each begins int32 [groups + 1]; behind the last one
    nothing begins. Where there is `live`, the pairs are those of so many rows.
    """
    count, per_token = m.experts.count, m.experts.per_token
    kernel = Kernel(name, 1)
    code = kernel.code
    experts = kernel.input("experts", (m.rows, per_token), "i32")
    number = kernel.input("live", (1,), "i32") if live else None
    order, chosen, starts = (kernel.output(each, (size,), "i32") for each, size in m.lists.items())
    end = code.index(m.pairs) if number is None else live_rows(number, m.rows) * per_token
    counts, offsets = (code.allocate((count,), "i32") for _ in range(2))

    def expert_of(pair: Value) -> Value:
        return experts.load_index([pair // per_token, pair % per_token])

    def count_pair(pair: Value) -> None:
        expert = expert_of(pair)
        counts.store(counts.load([expert]) + 1, [expert])

    def begin(expert: Value, state: list[Value]) -> list[Value]:
        place, total = state
        at, size = place.astype("index", signed=True), counts.load([expert])
        offsets.store(total, [expert])
        # What no expert follows is overwritten by the next one.
        chosen.store(expert.astype("i32", signed=True), [at])
        starts.store(total, [at])
        return [place + size.minimum(1, signed=True), total + size]

    def sort(pair: Value) -> None:
        expert = expert_of(pair)
        offset = offsets.load([expert])
        order.store(pair.astype("i32", signed=True), [offset.astype("index", signed=True)])
        offsets.store(offset + 1, [expert])

    _fill(code, counts, code.constant(0, I32))
    code.repeat(0, end, count_pair)
    _fill(code, chosen, code.constant(0, I32))
    _fill(code, starts, end.astype("i32", signed=True))
    code.loop(0, count, [code.constant(0, I32)] * 2, begin)
    code.repeat(0, end, sort)
    return kernel.function()


def _fill(code: Code, memory: Memory, value: Value) -> None:
    code.repeat(0, memory.size, lambda at: memory.store(value, [at]))
