"""The operations whose form depends on the device: products with stored weights, norms, and the KV cache.

`workers.iree.model.tiled_ops` has them for a CPU, `workers.iree.model.plain_ops` for every other device.
"""

from dataclasses import dataclass
from typing import Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.parts import Activation
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.model.packing import Packed

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cache:
    """One KV cache on the device: which sequences and how many rows it holds."""

    layers: int
    slots: int
    heads: int
    head_dim: int
    capacity: int
    """Rows of a slot. The last tile of them is never attended to: rows that nobody may see are written there."""
    tile: int

    @classmethod
    def of(cls, config: ModelConfig, slots: int, context: int, tile: int) -> "Cache":
        rows = -(-context // tile) * tile
        return cls(config.layers, slots, config.kv_heads, config.head_dim, rows + tile, tile)

    @property
    def attended(self) -> int:
        """Rows of a slot that may be attended to."""
        return self.capacity - self.tile

    @property
    def spare_row(self) -> int:
        return self.capacity - 1

    @property
    def row_values(self) -> int:
        """Elements of one row of one slot, all layers together."""
        return self.layers * 2 * self.heads * self.head_dim

    @property
    def shape(self) -> Shape:
        """A slot's rows and lanes are one dimension, because keys and values order them differently."""
        return (self.layers, 2, self.slots, self.heads, self.capacity * self.head_dim)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the rows of one step stand in the cache."""

    slots: jax.Array
    """int32 [batch]: whose rows they are. A step of all slots has them in order."""
    rows: jax.Array
    """int32 [batch, tokens]: the cache row of each token; it sees the rows up to its own. One beyond `Cache.attended`
    is nobody's, and what comes out for it means nothing."""
    live: jax.Array | None = None
    """int32 [1]: rows that are somebody's, the first ones of a step of one token each. Products may leave out the
    others. None is all."""


@dataclass(frozen=True, slots=True)
class Angles:
    """RoPE angles of a step's rows."""

    cos: jax.Array
    sin: jax.Array
    """float32 [rows, rotated lanes / 2]."""


@dataclass(frozen=True, slots=True)
class Dense:
    """Weights of a dense layer, and of the norm that what follows begins with; None where a model has none.

    Norms and biases are float32.
    """

    qkv: jax.Array | Packed
    qkv_bias: jax.Array | None
    heads: tuple[jax.Array, jax.Array] | None
    """Norms of queries and keys."""
    o: jax.Array | Packed
    o_bias: jax.Array | None
    after_attention: jax.Array | None
    before_mlp: jax.Array | None
    gate_up: jax.Array | Packed
    down: jax.Array | Packed
    after_mlp: jax.Array | None
    following: jax.Array | None


Flow = tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]
"""What goes from layer to layer: x float32 [rows, hidden], its norm as an operand, the cache, and what layers count in,
None before the first."""


class Ops(Protocol):
    """What the model needs from a device. Methods are traced by JAX except the two about stored weights.

    An *operand* is the left side of a product, in whatever form the device wants it.
    """

    @property
    def dtype(self) -> str:
        """Of weights, matrix operands and cache."""

    def stored_shape(self, outputs: int, inputs: int) -> Shape: ...

    def store(self, matrix: NDArray[np.generic]) -> NDArray[np.generic]: ...

    def operand(self, rows: int, width: int) -> tuple[Shape, str]:
        """Shape and type of an operand of so many rows and values."""

    def rows(self, table: jax.Array | Packed, which: jax.Array) -> jax.Array:
        """Some outputs of a matrix that is stored in rows or packed with few bits: float32 [len(which), inputs]."""

    def norm(
        self,
        x: jax.Array,
        delta: jax.Array | None,
        after: jax.Array | None,
        before: jax.Array | None,
        eps: float,
        multiplier: float = 1.0,
    ) -> tuple[jax.Array, jax.Array]:
        """x + delta * multiplier, float32 [rows, width], and its RMS norm times the weight `before` as an operand.

        With the weight `after` it is delta's norm that is multiplied and added; without `before` the operand is the sum
        itself.
        """

    def linear(
        self,
        x: jax.Array,
        weight: jax.Array | Packed,
        outputs: int,
        bias: jax.Array | None = None,
        live: jax.Array | None = None,
    ) -> jax.Array:
        """An operand times a stored weight (, plus float32 [outputs]) -> float32 [rows, outputs].

        Of the rows that are not `live` (see `Place`) anything may come out.
        """

    def gated(
        self,
        x: jax.Array,
        weight: jax.Array | Packed,
        inputs: int,
        ffn: int,
        activation: Activation,
        live: jax.Array | None = None,
    ) -> jax.Array:
        """act(gate) * up as an operand of width ffn: `x` is one of width `inputs`, the weight [2 * ffn, inputs].

        Of the rows that are not `live` anything may come out.
        """

    def experts(
        self,
        x: jax.Array,
        router: jax.Array,
        up: jax.Array | Packed,
        down: jax.Array | Packed,
        config: ModelConfig,
        live: jax.Array | None = None,
    ) -> jax.Array:
        """What a mixture adds to the rows of an operand: float32 [rows, hidden]. The weights of `up` and `down` are
        those of all experts, one after the other."""

    def place(
        self,
        qkv: jax.Array,
        angles: Angles | None,
        norms: tuple[jax.Array, jax.Array] | None,
        kv: jax.Array,
        cache: Cache,
        layer: int,
        config: ModelConfig,
        where: Place,
    ) -> tuple[jax.Array, jax.Array]:
        """Norm qkv, float32 [rows, heads * head_dim], rotate it, and put keys and values into the cache.

        Returns the queries as `attend` wants them and the cache.
        """

    def attend(
        self, q: jax.Array, kv: jax.Array, cache: Cache, layer: int, config: ModelConfig, where: Place
    ) -> jax.Array:
        """Queries -> an operand of width heads * head_dim; the layer's window and the cap of scores hold."""

    def layer(
        self,
        flow: Flow,
        weights: Dense,
        angles: Angles | None,
        cache: Cache,
        number: int,
        config: ModelConfig,
        where: Place,
    ) -> Flow | None:
        """A whole dense layer; None where the operations above are to be used."""
