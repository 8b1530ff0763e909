"""The levels of a KV block as operands of the arithmetic, in a workgroup's memory: several query blocks read them."""

from workers.iree.kernels.attention.shape import KV_BLOCK, Attention
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.value import Value

MAX_HEAD_DIM = 256
"""The most lanes of a head whose levels are unpacked: 128 KiB of the stack, which has 256 KiB for a whole kernel."""


class UnpackedBlock:
    """Keys and values without scales, packed as in a cache of the arithmetic's type with `KV_BLOCK` rows."""

    def __init__(self, code: Code, kind: Attention, cache: Memory) -> None:
        self._code, self._shape, self._cache = code, kind.shape, cache
        self._elements = kind.elements
        sizes = [KV_BLOCK * width for width in kind.shape.widths]
        self.keys, self.values = (code.allocate((size,), kind.arithmetic.element) for size in sizes)

    @staticmethod
    def pays(kind: Attention) -> bool:
        """Return whether several query blocks read what is converted, into pairs of which a level takes two bytes, and
        it fits into the stack."""
        fits = max(kind.shape.widths) <= MAX_HEAD_DIM
        return kind.shape.bits != 0 and kind.item_blocks > 1 and kind.arithmetic.per_word == 2 and fits

    def write(self, keys: Value, values: Value, low: Value, high: Value) -> None:
        """Convert positions `low` .. `high` of the head whose keys and values begin at these elements of the cache."""
        elements, shape = self._elements, self._shape
        size, (depth, value_depth) = LANES * elements.k, shape.lane_elements

        def tile(position: Value) -> None:
            source, target = keys + position * depth, (position - low) * shape.head_dim
            for load in range(depth // elements.k):
                self._convert(source + load * size, self.keys, target + load * (size * elements.per_load), size)

        self._code.repeat(low, high, tile, LANES)
        for group in range(value_depth // LANES):
            source = values + group * LANES * shape.capacity
            target = group * elements.per_load * LANES * KV_BLOCK

            def step(position: Value, source: Value = source, target: int = target) -> None:
                self._convert(
                    source + position * LANES, self.values, (position - low) * LANES + target, LANES * KV_BLOCK
                )

            self._code.repeat(low, high, step, elements.k)

    def _convert(self, source: Value, target: Memory, at: Value, stride: int) -> None:
        """Store the operands of a load, each `stride` elements behind the one before."""
        for number, (operand,) in enumerate(self._elements.load(self._cache, [source])):
            target.store(operand, [at + number * stride])
