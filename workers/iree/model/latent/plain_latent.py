"""The operations of latent attention for every device but a CPU, in plain StableHLO."""

from __future__ import annotations

import numpy as np

from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.lazy_jax import jax, jnp, lax


class PlainLatent:
    """The operations of `workers.iree.model.ops.Ops` of latent attention."""

    __slots__ = ()
    dtype: str

    def first_columns(
        self,
        x: jax.Array,
        columns: int,
        weight: jax.Array | None,
        eps: float,
        live: jax.Array | None = None,
    ) -> jax.Array:
        taken = x[:, :columns]
        return (taken if weight is None else _normed(taken, weight, eps)).astype(self.dtype)

    def head_linear(
        self, x: jax.Array, weight: jax.Array, heads: int, live: jax.Array | None = None, *, operand: bool
    ) -> jax.Array:
        matrices = weight.reshape(heads, -1, weight.shape[1])
        columns = x.reshape(len(x), heads, -1)
        out = jnp.einsum("rhi,hoi->rho", columns, matrices, preferred_element_type=jnp.float32).reshape(len(x), -1)
        return out.astype(self.dtype) if operand else out

    def latent_rows(
        self,
        queries: jax.Array,
        projected: jax.Array,
        multiplied: jax.Array,
        weight: jax.Array,
        config: ModelConfig,
        live: jax.Array | None = None,
    ) -> jax.Array:
        sizes, rows = config.latent, len(queries)
        assert sizes is not None  # asked for by layers with latent attention
        first = config.heads * sizes.passed
        rotated = queries[:, first : first + config.heads * sizes.rotated].reshape(rows, config.heads, -1)
        query = jnp.concatenate([rotated, multiplied.reshape(rows, config.heads, -1)], axis=2)
        start = projected.shape[1] - sizes.rank - sizes.rotated
        latent = _normed(projected[:, start : start + sizes.rank], weight, sizes.eps)
        return jnp.concatenate([query.reshape(rows, -1), projected[:, start + sizes.rank :], latent, latent], axis=1)


def _normed(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Return the RMS norm of the last dimension."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + np.float32(eps)) * weight
