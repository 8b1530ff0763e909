"""The layout of the KV cache on a device."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from workers.checkpoints.architectures.parts import KvShape
from workers.checkpoints.checkpoint import ModelConfig
from workers.precision import SCALE_BYTES, KvDtype, head_row_bytes, level_bits

Array = TypeVar("Array")


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The sizes of an array of a KV cache: the rows of every slot, in every layer of one shape of keys and values."""

    layers: int
    slots: int
    heads: int
    """KV heads."""
    head_dim: int
    """Lanes of a key and, unless `value_width` is set, of a value."""
    capacity: int
    """Rows of a slot. The last tile of them is never attended to: padding rows are written there."""
    tile: int
    kv_dtype: KvDtype = "auto"
    value_width: int = 0
    """Lanes of a value; 0 is `head_dim`."""
    suffix: str = ""
    """Ends the names of kernels; empty where the cache is one array."""

    @property
    def bits(self) -> int:
        """Bits of levels, which are stored in int8 like the four bytes of a scale; 0 is numbers of the model's type."""
        return level_bits(self.kv_dtype)

    @property
    def widths(self) -> tuple[int, int]:
        """Lanes of a key and of a value."""
        return self.head_dim, self.value_width or self.head_dim

    @property
    def value_dim(self) -> int:
        """Lanes of a value."""
        return self.widths[1]

    @property
    def lane_elements(self) -> tuple[int, int]:
        """Elements of a key and of a value, without the scale."""
        keys, values = self.widths
        return (keys // 2, values // 2) if self.bits == 4 else (keys, values)

    def dtype(self, model: str) -> str:
        """Return the type of the cache's elements for a model of this type."""
        return "int8" if self.bits else model

    @property
    def row_width(self) -> int:
        """Elements of a row of a head: of the wider of key and value."""
        return max(self.lane_elements) + self.scale_elements

    @property
    def scale_elements(self) -> int:
        """Elements of the scale of a row of a head."""
        return SCALE_BYTES if self.bits else 0

    @property
    def attended(self) -> int:
        """Rows of a slot that may be attended to."""
        return self.capacity - self.tile

    @property
    def spare_row(self) -> int:
        """The row that padding rows of a step are written to."""
        return self.capacity - 1

    @property
    def row_values(self) -> int:
        """Elements of one row of one slot, all layers together."""
        return self.layers * self.heads * (sum(self.lane_elements) + 2 * self.scale_elements)

    def row_bytes(self, item_bytes: int) -> int:
        """Return the bytes of one row of one slot, for a model whose numbers have so many."""
        return self.layers * self.heads * sum(head_row_bytes(width, item_bytes, self.kv_dtype) for width in self.widths)

    @property
    def shape(self) -> tuple[int, ...]:
        """A slot's rows and lanes are one dimension, because keys and values order them differently. Where they are of
        different widths, the narrower leave the end of it unused."""
        return (self.layers, 2, self.slots, self.heads, self.capacity * self.row_width)


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The sizes of a KV cache: an array for each group of layers, see `ModelConfig.kv_groups`. All have as many
    slots."""

    groups: tuple[KvLayout, ...]

    @classmethod
    def of(cls, config: ModelConfig, slots: int, context: int, tile: int, kv_dtype: KvDtype = "auto") -> "CacheLayout":
        """Return the layout of slots for `context` tokens, in whole tiles of rows."""
        capacity, groups = -(-context // tile) * tile + tile, config.kv_groups
        made = []
        for number, layers in enumerate(groups):
            shape: KvShape = config.kv_shape(layers[0])
            keys, values = shape.key_width, shape.value_width
            values = 0 if values == keys else values
            suffix = f"_{number}" if len(groups) > 1 else ""
            made.append(KvLayout(len(layers), slots, shape.heads, keys, capacity, tile, kv_dtype, values, suffix))
        return cls(tuple(made))

    @property
    def slots(self) -> int:
        return self.groups[0].slots

    @property
    def capacity(self) -> int:
        """See `KvLayout.capacity`."""
        return self.groups[0].capacity

    @property
    def attended(self) -> int:
        """See `KvLayout.attended`."""
        return self.groups[0].attended

    @property
    def spare_row(self) -> int:
        """See `KvLayout.spare_row`."""
        return self.groups[0].spare_row

    @property
    def heads(self) -> int:
        """The fewest KV heads of a layer."""
        return min(group.heads for group in self.groups)

    @property
    def kv_dtype(self) -> KvDtype:
        return self.groups[0].kv_dtype

    def row_bytes(self, item_bytes: int) -> int:
        """Return the bytes of one row of one slot in all layers, for a model whose numbers have so many."""
        return sum(group.row_bytes(item_bytes) for group in self.groups)


def replaced(arrays: Sequence[Array], number: int, array: Array) -> tuple[Array, ...]:
    """Return the arrays with one of them replaced."""
    made: Iterable[Array] = (array if at == number else each for at, each in enumerate(arrays))
    return tuple(made)
