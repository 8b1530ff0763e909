"""The operations of layers with a recurrent state for every device but a CPU, in plain StableHLO."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workers.checkpoints.architectures.parts import GatedDelta, Mamba2
from workers.iree.lazy_jax import jax, jnp, lax
from workers.iree.model.ops import MambaWeights, Recurrence, StepRows, Taps

EPS = np.float32(1e-6)
"""Added to the squared lengths of queries and keys."""


class PlainRecurrence:
    """The operations of `workers.iree.model.ops.Ops` of layers with a recurrent state. A step has a sequence of each
    slot, or one of one slot."""

    __slots__ = ()
    dtype: str

    def convolution(
        self, x: jax.Array, taps: Taps, recurrence: Recurrence, step: StepRows, *, gated: bool
    ) -> tuple[jax.Array, jax.Array]:
        (batch, tokens), (count, channels) = step.rows.shape, taps.weights.shape
        inputs = x[:, taps.first : taps.first + channels]
        if gated:
            inputs = inputs * x[:, 2 * channels : 3 * channels]
        state = _taken(recurrence, step, (count - 1) * channels).reshape(batch, count - 1, channels)
        both = jnp.concatenate([state, inputs.reshape(batch, tokens, channels)], axis=1)
        total = jnp.zeros((batch, tokens, channels), jnp.float32)
        for tap in range(count):
            total = total + both[:, tap : tap + tokens] * taps.weights[tap]
        if taps.bias is not None:
            total = total + taps.bias
        # The inputs before the first padding row.
        there = jnp.sum(step.rows < recurrence.attended, axis=1, dtype=jnp.int32)
        kept = there[:, None] + jnp.arange(count - 1, dtype=jnp.int32)
        last = jnp.take_along_axis(both, kept[:, :, None], axis=1)
        states = _put(recurrence, step, last.reshape(batch, -1))
        total = total.reshape(batch * tokens, channels)
        if gated:
            return (total * x[:, channels : 2 * channels]).astype(self.dtype), states
        return jax.nn.silu(total), states

    def gated_delta(
        self,
        x: jax.Array,
        gates: jax.Array,
        constants: tuple[jax.Array, jax.Array],
        sizes: GatedDelta,
        recurrence: Recurrence,
        step: StepRows,
    ) -> tuple[jax.Array, jax.Array]:
        batch, tokens = step.rows.shape
        decay, bias = constants
        shape = (batch, tokens, sizes.key_heads, sizes.key_dim)
        q, k = (_unit(x[:, at : at + sizes.keys].reshape(shape)) for at in (0, sizes.keys))
        q, k = (jnp.repeat(each, sizes.value_heads // sizes.key_heads, axis=2) for each in (q, k))
        v = x[:, 2 * sizes.keys : sizes.channels].reshape(batch, tokens, sizes.value_heads, sizes.value_dim)
        gates = gates.reshape(batch, tokens, 2, sizes.value_heads)
        beta = jax.nn.sigmoid(gates[:, :, 0])
        kept = jnp.exp(-jnp.exp(decay) * jax.nn.softplus(gates[:, :, 1] + bias))
        there = step.rows < recurrence.attended
        behind = _behind(recurrence, sizes)
        size = sizes.values * sizes.key_dim
        state = _taken(behind, step, size).reshape(batch, sizes.value_heads, sizes.key_dim, sizes.value_dim)

        def row(matrix: jax.Array, values: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            q, k, v, beta, kept, there = values
            new = matrix * kept[..., None, None]
            correction = (v - jnp.sum(new * k[..., None], axis=-2)) * beta[..., None]
            new = new + k[..., None] * correction[..., None, :]
            out = jnp.sum(new * q[..., None], axis=-2) * np.float32(sizes.key_dim**-0.5)
            return jnp.where(there[:, None, None, None], new, matrix), out

        rows = tuple(jnp.moveaxis(each, 1, 0) for each in (q, k, v, beta, kept, there))
        state, out = lax.scan(row, state, rows)
        states = _put(behind, step, state.reshape(batch, -1))
        return jnp.moveaxis(out, 0, 1).reshape(batch * tokens, sizes.values), states

    def selective_state(
        self,
        x: jax.Array,
        projected: jax.Array,
        weights: MambaWeights,
        sizes: Mamba2,
        recurrence: Recurrence,
        step: StepRows,
    ) -> tuple[jax.Array, jax.Array]:
        batch, tokens = step.rows.shape
        inputs = x[:, : sizes.inner].reshape(batch, tokens, sizes.heads, sizes.head_dim)
        b, c = (
            jnp.repeat(each.reshape(batch, tokens, sizes.groups, sizes.state), sizes.heads // sizes.groups, axis=2)
            for each in jnp.split(x[:, sizes.inner :], 2, axis=1)
        )
        steps = jax.nn.softplus(projected[:, sizes.inner + sizes.channels :] + weights.step_bias)
        steps = jnp.clip(steps, *map(np.float32, sizes.step_limit)).reshape(batch, tokens, sizes.heads)
        kept = jnp.exp(-jnp.exp(weights.decay) * steps)
        there = step.rows < recurrence.attended
        behind = _behind(recurrence, sizes)
        state = _taken(behind, step, sizes.inner * sizes.state)
        state = state.reshape(batch, sizes.heads, sizes.state, sizes.head_dim)

        def row(matrix: jax.Array, values: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            added, b, c, kept, there = values
            new = matrix * kept[..., None, None] + b[..., None] * added[..., None, :]
            out = jnp.sum(new * c[..., None], axis=-2)
            return jnp.where(there[:, None, None, None], new, matrix), out

        rows = tuple(jnp.moveaxis(each, 1, 0) for each in (inputs * steps[..., None], b, c, kept, there))
        state, out = lax.scan(row, state, rows)
        read = jnp.moveaxis(out, 0, 1) + inputs * weights.skip[:, None]
        read = read.reshape(batch * tokens, sizes.inner) * jax.nn.silu(projected[:, : sizes.inner])
        return read, _put(behind, step, state.reshape(batch, -1))

    def group_norm(
        self, x: jax.Array, weight: jax.Array, groups: int, eps: float, live: jax.Array | None = None
    ) -> jax.Array:
        parts = x.reshape(len(x), groups, -1)
        mean = jnp.mean(parts * parts, axis=-1, keepdims=True)
        return ((parts * lax.rsqrt(mean + np.float32(eps))).reshape(x.shape) * weight).astype(self.dtype)

    def gated_norm(
        self,
        x: jax.Array,
        projected: jax.Array,
        weight: jax.Array,
        sizes: GatedDelta,
        eps: float,
        live: jax.Array | None = None,
    ) -> jax.Array:
        heads = x.reshape(len(x), sizes.value_heads, sizes.value_dim)
        mean = jnp.mean(heads * heads, axis=-1, keepdims=True)
        normed = heads * lax.rsqrt(mean + np.float32(eps)) * weight
        return (normed.reshape(x.shape) * jax.nn.silu(projected[:, sizes.channels :])).astype(self.dtype)

    def output_gate(self, x: jax.Array, gate: jax.Array, live: jax.Array | None = None) -> jax.Array:
        return (x.astype(jnp.float32) * jax.nn.sigmoid(gate)).astype(self.dtype)


def _behind(recurrence: Recurrence, sizes: GatedDelta | Mamba2) -> Recurrence:
    """Return the part of a layer's state behind that of its convolution."""
    return replace(recurrence, offset=recurrence.offset + (sizes.taps - 1) * sizes.channels)


def _taken(recurrence: Recurrence, step: StepRows, size: int) -> jax.Array:
    """Return the states of the step's sequences, float32 [batch, size]."""
    states = recurrence.states[:, recurrence.offset : recurrence.offset + size]
    return lax.optimization_barrier(states[step.slots])


def _put(recurrence: Recurrence, step: StepRows, values: jax.Array) -> jax.Array:
    """Return all states with those of the step's sequences replaced."""
    if len(values) == len(recurrence.states):  # slots are in order
        return lax.dynamic_update_slice(recurrence.states, values, (0, recurrence.offset))
    # One sequence: a scatter is more than its slot needs.
    at = (step.slots[0], jnp.asarray(recurrence.offset, jnp.int32))
    return lax.dynamic_update_slice(recurrence.states, values, at)


def _unit(x: jax.Array) -> jax.Array:
    """x / sqrt(sum(x^2) + EPS) over the last dimension."""
    return x * lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + EPS)
