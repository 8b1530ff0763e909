"""The sizes of attention and the layout of the KV cache that its kernels share."""

from dataclasses import dataclass

from workers.iree.kernels.ir.builder import Code


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
    """Rows of a slot that may be seen; those behind are nobody's."""
    batch: int
    tokens: int
    scale: float
    """Queries are multiplied by it."""
    rotated: int
    """Lanes of a head that RoPE turns, the first ones; 0 where a layer has no positions."""

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.queries // self.heads

    @property
    def cache(self) -> tuple[int, ...]:
        return (self.layers, 2, self.slots, self.heads, self.capacity * self.head_dim)

    def begin(self, code: Code, layer: str, part: int, slot: str, head: str) -> str:
        """The element of the cache where a slot's keys (0) or values (1) of a head begin."""
        at = code.add(code.mul(code.add(code.mul(layer, 2), part), self.slots), slot)
        return code.mul(code.add(code.mul(at, self.heads), head), self.capacity * self.head_dim)
