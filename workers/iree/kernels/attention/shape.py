"""The sizes of attention and the layout of the KV cache that its kernels partition."""

from dataclasses import dataclass

from workers.iree.kernels.ir.value import Value


@dataclass(frozen=True, slots=True)
class Heads:
    """The sizes of a layer's attention, and of the cache [layers, 2, slots, heads, capacity * head_dim].

    A slot's keys are packed [capacity / 16, head_dim / k, 16, k], its values [head_dim / 16, capacity / k, 16, k].
    """

    layers: int
    slots: int
    queries: int
    """Query heads."""
    heads: int
    """KV heads."""
    head_dim: int
    capacity: int
    attended: int
    """Rows of a slot that may be attended to; padding rows are written behind them."""
    batch: int
    tokens: int
    scale: float
    """Queries are multiplied by it."""
    rotated: int
    """Lanes of a head that RoPE rotates, the first ones; 0 where a layer has no positions."""

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.queries // self.heads

    @property
    def cache(self) -> tuple[int, ...]:
        return (self.layers, 2, self.slots, self.heads, self.capacity * self.head_dim)

    def begin(self, layer: Value, part: int, slot: Value, head: Value) -> Value:
        """Return the element of the cache where a slot's keys (0) or values (1) of a head begin."""
        at = (layer * 2 + part) * self.slots + slot
        return (at * self.heads + head) * (self.capacity * self.head_dim)
