"""The operations whose form depends on the device: a product with a stored weight, and the KV cache.

`TiledOps` packs weights and cache for a CPU's microkernels and attends only to what is used; `PlainOps` is plain
StableHLO for every other device and attends to the whole capacity under a mask.
"""

from dataclasses import dataclass, field
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from workers.checkpoint import ModelConfig
from workers.iree import kernels
from workers.iree.tiles import Tiles, pack

Shape = tuple[int, ...]
NEGATIVE = np.float32(-1e30)


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
    def shape(self) -> Shape:
        """A slot's rows and lanes are one dimension, because keys and values order them differently."""
        return (self.layers, 2, self.slots, self.heads, self.capacity * self.head_dim)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the rows of one step stand in the cache."""

    first: jax.Array
    """int32 []: the first slot that takes part."""
    rows: jax.Array
    """int32 [batch, tokens]: the cache row of each token; it sees the rows up to its own."""
    count: jax.Array
    """int32 []: tiles of rows to attend to; every visible row lies in them."""


class Ops(Protocol):
    """What the model needs from a device. Methods are traced by JAX except the three about stored weights."""

    @property
    def dtype(self) -> str:
        """Of weights, matrix operands and cache."""

    def stored_shape(self, outputs: int, inputs: int) -> Shape: ...

    def store(self, matrix: NDArray[np.generic]) -> NDArray[np.generic]: ...

    def linear(self, x: jax.Array, weight: jax.Array, outputs: int) -> jax.Array:
        """x float32 [rows, inputs] times a stored weight -> float32 [rows, outputs]."""

    def mean_square(self, x: jax.Array) -> jax.Array:
        """float32 [rows, width] -> [rows, 1]."""

    def rotate(self, x: jax.Array, cos: jax.Array, sin: jax.Array, first: int, count: int) -> jax.Array:
        """RoPE on `count` heads from `first` on: x float32 [rows, heads, head_dim] -> [rows, count, head_dim].

        cos and sin are float32 [rows, head_dim / 2]. The pairs are a head's halves, not neighbours.
        """

    def write(self, kv: jax.Array, cache: Cache, layer: int, k: jax.Array, v: jax.Array, place: Place) -> jax.Array:
        """Put k and v [batch, tokens, heads, head_dim] into their rows; returns the cache."""

    def attend(self, q: jax.Array, kv: jax.Array, cache: Cache, layer: int, place: Place) -> jax.Array:
        """q float32 [batch, tokens, query heads, head_dim], scaled -> float32 of the same shape."""


@dataclass(slots=True)
class TiledOps:
    """Packed weights and cache for `mmt4d`. Collects the kernels that it used in `bodies`, by name."""

    dtype: str
    tiles: Tiles
    sum_tiles: Tiles
    """For float32 operands, whatever `dtype` is."""
    bodies: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def element(self) -> str:
        return kernels.ELEMENT[self.dtype]

    def stored_shape(self, outputs: int, inputs: int) -> Shape:
        n, k = self.tiles.n, self.tiles.k
        return (-(-outputs // n), inputs // k, n, k)

    def store(self, matrix: NDArray[np.generic]) -> NDArray[np.generic]:
        return pack(matrix, self.tiles)

    def linear(self, x: jax.Array, weight: jax.Array, outputs: int) -> jax.Array:
        rows, inputs = x.shape
        stored = weight.shape[0] * weight.shape[2]
        name = f"baton_linear_{rows}_{stored}_{inputs}"
        self.bodies[name] = kernels.linear(name, rows, stored, inputs, self.tiles, self.element)
        out = self._call(name, (rows, stored), x.astype(self.dtype), weight)
        return out if stored == outputs else out[:, :outputs]

    def mean_square(self, x: jax.Array) -> jax.Array:
        rows, width = x.shape
        n = self.sum_tiles.n
        name = f"baton_sums_{rows}_{width}"
        self.bodies[name] = kernels.linear(name, rows, n, width, self.sum_tiles, "f32")
        ones = jnp.ones((1, width // self.sum_tiles.k, n, self.sum_tiles.k), jnp.float32)
        return self._call(name, (rows, n), x * x, ones)[:, :1] / np.float32(width)

    def rotate(self, x: jax.Array, cos: jax.Array, sin: jax.Array, first: int, count: int) -> jax.Array:
        rows, heads, depth = x.shape
        name = f"baton_rope_{rows}_{heads}_{depth}_{first}_{count}"
        self.bodies[name] = kernels.rope(name, rows, heads, first, count, depth // 2)
        out = self._call(name, (rows, count, 2, depth // 2), x.reshape(rows, heads, 2, depth // 2), cos, sin)
        return out.reshape(rows, count, depth)

    def _call(self, name: str, shape: Shape, *operands: jax.Array) -> jax.Array:
        out: jax.Array = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(shape, jnp.float32))(*operands)
        return out

    def write(self, kv: jax.Array, cache: Cache, layer: int, k: jax.Array, v: jax.Array, place: Place) -> jax.Array:
        batch, tokens = place.rows.shape
        n, step, heads, depth = self.tiles.n, self.tiles.k, cache.heads, cache.head_dim
        row = place.rows[:, :, None, None]
        lane = jnp.arange(depth, dtype=jnp.int32)
        # keys [capacity / n, depth / k, n, k], values [depth / n, capacity / k, n, k]
        key_at = row // n * (n * depth) + row % n * step + lane // step * (n * step) + lane % step
        value_at = lane // n * (n * cache.capacity) + lane % n * step + row // step * (n * step) + row % step
        at = jnp.stack([key_at, value_at])
        at = jnp.broadcast_to(at, (2, batch, tokens, heads, depth))
        head = (
            (place.first + jnp.arange(batch, dtype=jnp.int32))[None, :, None, None, None] * heads
            + jnp.arange(heads, dtype=jnp.int32)[None, None, None, :, None]
            + (2 * layer + jnp.arange(2, dtype=jnp.int32))[:, None, None, None, None] * (cache.slots * heads)
        )
        head = jnp.broadcast_to(head, at.shape)
        new = jnp.stack([k, v]).astype(self.dtype)
        flat = kv.reshape(cache.layers * 2 * cache.slots * heads, cache.capacity * depth)
        flat = flat.at[head.reshape(-1), at.reshape(-1)].set(
            new.reshape(-1), mode="promise_in_bounds", unique_indices=True
        )
        return flat.reshape(kv.shape)

    def attend(self, q: jax.Array, kv: jax.Array, cache: Cache, layer: int, place: Place) -> jax.Array:
        batch, tokens, query_heads, depth = q.shape
        group = query_heads // cache.heads
        a = kernels.Attention(
            layer,
            cache.layers,
            cache.slots,
            cache.heads,
            cache.capacity,
            depth,
            batch,
            tokens * group,
            self.tiles,
            self.element,
        )
        name = f"baton_attention_{layer}_{batch}_{tokens}"
        self.bodies[name] = kernels.attention(name, a)
        padding = a.blocks * a.tile - a.rows
        q = q.astype(self.dtype).reshape(batch, tokens, cache.heads, group, depth).transpose(0, 2, 1, 3, 4)
        q = q.reshape(batch * cache.heads, a.rows, depth)
        visible = jnp.repeat(place.rows, group, axis=1)
        visible = jnp.pad(visible, ((0, 0), (0, padding)))
        visible = jnp.repeat(visible, cache.heads, axis=0).reshape(-1, a.blocks, a.tile)
        out = self._call(name, (batch * cache.heads, a.rows, depth), q, kv, visible, place.first, place.count)
        out = out.reshape(batch, cache.heads, tokens, group, depth)
        return out.transpose(0, 2, 1, 3, 4).reshape(batch, tokens, query_heads, depth)


@dataclass(frozen=True, slots=True)
class PlainOps:
    """Plain StableHLO: weights [outputs, inputs], cache rows in order, attention over the whole capacity."""

    dtype: str

    def stored_shape(self, outputs: int, inputs: int) -> Shape:
        return (outputs, inputs)

    def store(self, matrix: NDArray[np.generic]) -> NDArray[np.generic]:
        return matrix

    def linear(self, x: jax.Array, weight: jax.Array, outputs: int) -> jax.Array:
        return jnp.einsum("mk,nk->mn", x.astype(self.dtype), weight, preferred_element_type=jnp.float32)

    def mean_square(self, x: jax.Array) -> jax.Array:
        return jnp.mean(x * x, -1, keepdims=True)

    def rotate(self, x: jax.Array, cos: jax.Array, sin: jax.Array, first: int, count: int) -> jax.Array:
        half = x.shape[-1] // 2
        cos, sin = cos[:, None, :], sin[:, None, :]
        a, b = x[:, first : first + count, :half], x[:, first : first + count, half:]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def write(self, kv: jax.Array, cache: Cache, layer: int, k: jax.Array, v: jax.Array, place: Place) -> jax.Array:
        batch = place.rows.shape[0]
        slot = place.first + jnp.arange(batch, dtype=jnp.int32)
        head = slot[:, None] * cache.heads + jnp.arange(cache.heads, dtype=jnp.int32)
        flat = kv.reshape(-1, cache.head_dim)
        for part, new in enumerate((k, v)):
            base = (2 * layer + part) * cache.slots * cache.heads
            at = (base + head[:, None, :]) * cache.capacity + place.rows[:, :, None]
            # Behind a barrier: the CUDA backend cannot distribute a scatter that its indices are fused into.
            at, rows = lax.optimization_barrier((at.reshape(-1), new.astype(self.dtype).reshape(-1, cache.head_dim)))
            flat = flat.at[at].set(rows, mode="promise_in_bounds", unique_indices=True)
        return flat.reshape(kv.shape)

    def attend(self, q: jax.Array, kv: jax.Array, cache: Cache, layer: int, place: Place) -> jax.Array:
        batch, tokens, query_heads, depth = q.shape
        group = query_heads // cache.heads
        mine = lax.dynamic_slice(
            kv[layer], (0, place.first, 0, 0), (2, batch, cache.heads, cache.capacity * depth)
        ).reshape(2, batch, cache.heads, cache.capacity, depth)[:, :, :, : cache.attended]
        q = q.astype(self.dtype).reshape(batch, tokens, cache.heads, group, depth)
        score = jnp.einsum("bthgd,bhcd->bthgc", q, mine[0], preferred_element_type=jnp.float32)
        seen = jnp.arange(cache.attended, dtype=jnp.int32) <= place.rows[:, :, None, None, None]
        score = jnp.where(seen, score, NEGATIVE)
        weight = jnp.exp(score - jnp.max(score, -1, keepdims=True))
        mass = jnp.sum(weight, -1)
        mixed = jnp.einsum("bthgc,bhcd->bthgd", weight.astype(self.dtype), mine[1], preferred_element_type=jnp.float32)
        return (mixed / mass[..., None]).reshape(batch, tokens, query_heads, depth)
