"""The layout of the KV cache on a device."""

from dataclasses import dataclass

from workers.checkpoints.checkpoint import ModelConfig
from workers.precision import SCALE_BYTES, KvDtype, level_bits


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
        return cls(config.kv_layers, slots, config.kv_heads, config.head_dim, rows + tile, tile, kv_dtype)

    @property
    def bits(self) -> int:
        """Bits of levels, which are stored in int8 like the four bytes of a scale; 0 is numbers of the model's type."""
        return level_bits(self.kv_dtype)

    @property
    def lane_elements(self) -> int:
        """Elements of a row of a head, without its scale."""
        return self.head_dim // 2 if self.bits == 4 else self.head_dim

    def dtype(self, model: str) -> str:
        """Return the type of the cache's elements for a model of this type."""
        return "int8" if self.bits else model

    @property
    def row_width(self) -> int:
        """Elements of a row of a head."""
        return self.lane_elements + (SCALE_BYTES if self.bits else 0)

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
