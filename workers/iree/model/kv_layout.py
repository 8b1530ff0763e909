"""The layout of the KV cache on a device."""

from dataclasses import dataclass

from workers.checkpoints.checkpoint import ModelConfig


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

    @classmethod
    def of(cls, config: ModelConfig, slots: int, context: int, tile: int) -> "KvLayout":
        """Return the layout of slots for `context` tokens, in whole tiles of rows."""
        rows = -(-context // tile) * tile
        return cls(config.kv_layers, slots, config.kv_heads, config.head_dim, rows + tile, tile)

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
        return self.layers * 2 * self.heads * self.head_dim

    @property
    def shape(self) -> tuple[int, ...]:
        """A slot's rows and lanes are one dimension, because keys and values order them differently."""
        return (self.layers, 2, self.slots, self.heads, self.capacity * self.head_dim)
