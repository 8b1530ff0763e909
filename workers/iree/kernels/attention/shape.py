"""The sizes of attention, and the layout of the KV cache."""

from dataclasses import dataclass

from workers.iree.kernels.attention.kv_elements import KvElements, kv_elements
from workers.iree.kernels.attention.online_softmax import SoftmaxState
from workers.iree.kernels.ir.arithmetic import Arithmetic
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.partition import PARTITIONS_PER_THREAD
from workers.iree.kernels.ir.value import Value
from workers.precision import SCALE_BYTES

KV_BLOCK = 128
"""Positions whose weights are computed at once, relative to the greatest score among them. KV blocks begin at its
multiples. L2, to which they are prefetched, holds the keys and values of one; prefetching to L1 takes 5 % longer."""
CAPACITY_MULTIPLE = 64
"""A slot's capacity is rounded up to a multiple of this, the most rows that one step of a loop reads."""
MAX_QUERY_BLOCKS = 8
"""The most query blocks that attend to a KV block before the next one: their partial results stay in L1."""

STATE_BYTES = 192 << 10
"""The most memory of the softmax states of an item: a kernel has 256 KiB for all that it allocates."""
MAX_SHARED_ROWS = 8
"""The most rows of one slot that attend to a KV block before the next one."""
SHARED_STATE_BYTES = 64 << 10
"""The most memory of their softmax states, beside a KV block that is unpacked."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The sizes of a layer's attention, and of the KV cache [layers, 2, slots, kv_heads, capacity * row_width].

    A slot's keys are packed [capacity / 16, head_dim / k, 16, k], its values [head_dim / 16, capacity / k, 16, k].
    Where they are quantized, scales follow, float32 [capacity]; of 4 bits, two levels share an element, and `head_dim`
    is half as much here. Where keys and values are of different widths, the narrower leave the end of a head unused.
    """

    layers: int
    slots: int
    query_heads: int
    kv_heads: int
    head_dim: int
    """Lanes of a query, of a key and, unless `value_width` is set, of a value."""
    capacity: int
    """Rows of a slot."""
    attended: int
    """Rows of a slot that may be attended to; padding rows are written behind them."""
    batch: int
    tokens: int
    """Rows of each of the `batch` sequences."""
    scale: float
    """Queries are multiplied by it."""
    rope_dims: int
    """Lanes of a head that RoPE rotates, the first ones; 0 where a layer has no positions."""
    bits: int = 0
    """Bits of the levels of keys and values, which have scales; 0 is numbers of the model's type."""
    value_width: int = 0
    """Lanes of a value; 0 is `head_dim`."""
    ring: int = 0
    """Rows that a slot keeps, the last ones, whole KV blocks: row r is at r % ring. 0 is all rows."""

    @property
    def widths(self) -> tuple[int, int]:
        """Lanes of a key and of a value."""
        return self.head_dim, self.value_width or self.head_dim

    @property
    def value_dim(self) -> int:
        """Lanes of a value."""
        return self.widths[1]

    @property
    def qkv_width(self) -> int:
        """Values of a row of queries, keys and values of all heads."""
        return self.query_heads * self.head_dim + self.kv_heads * sum(self.widths)

    @property
    def lane_elements(self) -> tuple[int, int]:
        """Elements of a key and of a value, without the scale."""
        keys, values = self.widths
        return (keys // 2, values // 2) if self.bits == 4 else (keys, values)

    @property
    def row_width(self) -> int:
        """Elements of a row of a head: of the wider of key and value."""
        return max(self.lane_elements) + (SCALE_BYTES if self.bits else 0)

    @property
    def levels(self) -> tuple[int, int]:
        """Elements of the keys and of the values of a head of a slot, without scales."""
        keys, values = self.lane_elements
        return self.capacity * keys, self.capacity * values

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.query_heads // self.kv_heads

    @property
    def cache(self) -> tuple[int, ...]:
        return (self.layers, 2, self.slots, self.kv_heads, self.capacity * self.row_width)

    def place(self, row: Value) -> Value:
        """Return where a row of a slot is: itself, or its place in the ring, and the spare row for padding rows."""
        if not self.ring:
            return row
        return (row < self.attended).select(row % self.ring, self.capacity - 1)

    def begin(self, layer: Value, part: int, slot: Value, head: Value) -> Value:
        """Return the element of the cache where a slot's keys (part 0) or values (1) of a KV head begin."""
        at = (layer * 2 + part) * self.slots + slot
        return (at * self.kv_heads + head) * (self.capacity * self.row_width)


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """The rows, positions and lanes that are summed side by side in registers."""

    rows: int
    """Rows of a query block; they share what is read."""
    tiles: int
    """Vectors of positions whose scores are summed at once."""
    parts: int
    """Vectors of a value's lanes that are summed at once."""

    @classmethod
    def of(cls, shape: AttentionShape, arithmetic: Arithmetic) -> "AttentionTiling":
        """Return the tiling with the fewest query blocks, all of one size."""
        rows, most = shape.tokens * shape.group, arithmetic.accumulators
        blocks = -(-rows // (most // 2))
        block = -(-rows // blocks)
        tiles = next(n for n in (4, 2, 1) if n * block <= most)
        # A load of levels of 4 bits has two vectors of lanes.
        counts = (4, 2) if shape.bits == 4 else (4, 2, 1)
        parts = next(n for n in counts if n * block <= most and shape.value_dim // LANES % n == 0)
        return cls(block, tiles, parts)

    @property
    def step(self) -> int:
        """Positions whose scores are summed at once."""
        return self.tiles * LANES


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of one layer; all layers with the same window share its code."""

    shape: AttentionShape
    arithmetic: Arithmetic
    window: int = 0
    """Positions that a row sees, the last ones up to its own; 0 is all of them."""
    softcap: float = 0.0
    """Scores s become softcap * tanh(s / softcap) where it is not 0."""
    threads: int = 1
    sinks: bool = False
    """The softmax of a query head has a learned logit more, without a value."""
    ranges: bool = False
    """Each token sees the positions that an operand says, instead of those up to its own row."""
    around: bool = False
    """The window is as many positions before a row as after it, up to the last of its sequence; `rows` has the last
    positions then, and a further operand those of the rows themselves."""

    @property
    def split(self) -> bool:
        """True if threads share the context of a row: a single row's heads would leave some of them idle."""
        return not self.ranges and self.shape.tokens == 1 and self.shape.kv_heads % self.threads != 0

    @property
    def elements(self) -> KvElements:
        return kv_elements(self.arithmetic, self.shape.bits)

    @property
    def tiling(self) -> AttentionTiling:
        return AttentionTiling.of(self.shape, self.arithmetic)

    @property
    def blocks(self) -> int:
        """Query blocks of a sequence and KV head."""
        return -(-self.shape.tokens * self.shape.group // self.tiling.rows)

    @property
    def item_blocks(self) -> int:
        """Query blocks of an item: fewer than all where there would be less work than threads."""
        items = self.shape.kv_heads * self.shape.batch
        state = 4 * self.tiling.rows * SoftmaxState.width(self.shape.value_dim)
        most = max(1, min(MAX_QUERY_BLOCKS, STATE_BYTES // state))
        return min(most, -(-self.blocks // min(self.blocks, -(-2 * self.threads // items))))

    @property
    def shared_rows(self) -> int:
        """The most rows of one slot, side by side in a decode step, that attend to a KV block before the next one is
        read: as many as have room for their softmax states. 1 where no rows do."""
        if self.shape.tokens > 1 or self.ranges or self.around or self.shape.batch == 1:
            return 1
        state = 4 * self.item_blocks * self.tiling.rows * SoftmaxState.width(self.shape.value_dim)
        return max(1, min(MAX_SHARED_ROWS, self.shape.batch, SHARED_STATE_BYTES // state))

    @property
    def kv_blocks(self) -> int:
        """KV blocks that a slot may have, or a ring."""
        return -(-(self.shape.ring or self.shape.capacity) // KV_BLOCK)

    @property
    def partials_shape(self) -> tuple[int, int, int]:
        """The `SoftmaxState` of each query head and KV block, where threads share a context: float32."""
        rows = self.shape.batch * self.shape.query_heads
        return (rows, self.kv_blocks, SoftmaxState.width(self.shape.value_dim))

    @property
    def partitions(self) -> int:
        """Partitions of the work where threads do not share a context."""
        return min(self.items, PARTITIONS_PER_THREAD * self.threads)

    @property
    def items_per_head(self) -> int:
        """Items of a sequence and KV head."""
        return -(-self.blocks // self.item_blocks)

    @property
    def items(self) -> int:
        return self.shape.kv_heads * self.shape.batch * self.items_per_head

    @property
    def split_partitions(self) -> int:
        """Partitions of the work where threads share a context."""
        return PARTITIONS_PER_THREAD * self.threads

    @property
    def merge_partitions(self) -> int:
        """Partitions of the work of merging what threads leave that share a context."""
        return min(self.partials_shape[0], PARTITIONS_PER_THREAD * self.threads)
