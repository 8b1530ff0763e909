"""The layout of the KV cache on a device."""

from dataclasses import dataclass

from workers.checkpoints.checkpoint import ModelConfig
from workers.kv_rows import SCALE_BYTES
from workers.precision import KvDtype


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The sizes of a KV cache: the rows of every slot, in every layer."""

    layers: int
    slots: int
    heads: int
    """KV heads."""
    head_dim: int
    capacity: int
    """Rows of a slot. The last tile of them is never attended to: padding rows are written there."""
    tile: int
    kv_dtype: KvDtype = "auto"

    @classmethod
    def of(cls, config: ModelConfig, slots: int, context: int, tile: int, kv_dtype: KvDtype = "auto") -> "KvLayout":
        """Return the layout of slots for `context` tokens, in whole tiles of rows."""
        rows = -(-context // tile) * tile
        return cls(config.layers, slots, config.kv_heads, config.head_dim, rows + tile, tile, kv_dtype)

    @property
    def quantized(self) -> bool:
        """The elements are int8: levels, and scales as four of them."""
        return self.kv_dtype != "auto"

    def dtype(self, model: str) -> str:
        """Return the type of the cache's elements for a model of this type."""
        return "int8" if self.quantized else model

    @property
    def row_width(self) -> int:
        """Elements of a row of a head."""
        return self.head_dim + SCALE_BYTES if self.quantized else self.head_dim

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
        return self.layers * 2 * self.heads * self.row_width

    @property
    def shape(self) -> tuple[int, ...]:
        """A slot's rows and lanes are one dimension, because keys and values order them differently."""
        return (self.layers, 2, self.slots, self.heads, self.capacity * self.row_width)
