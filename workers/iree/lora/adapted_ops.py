"""The operations of a graph whose rows have adapters: products with a matrix of the model, and with those of adapters
beside it.

An adapter adds B A x to what a matrix of the model gives, where A has few rows (https://arxiv.org/abs/2106.09685). The
pairs of all adapters are one product each: A of all of them gives the columns of every adapter, those of the others
become zero in each row, and B of all of them adds up what is left. Both are the kernels of the model's own products,
whose rows do not depend on each other. A row without an adapter keeps the bits of the model's product.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from workers.checkpoints.architectures.parts import Activation
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.lazy_jax import jax, jnp
from workers.iree.model.kv_layout import KvLayout
from workers.iree.model.ops import DenseWeights, LayerState, RopeAngles, StepRows
from workers.iree.model.packed_matrix import Weight
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.tiled_ops import TiledOps


@dataclass(frozen=True, slots=True)
class AdapterMatrices:
    """The matrices of all adapters beside one of the model."""

    a: jax.Array
    """A of all adapters, one below the other, as products read it: [columns, inputs]."""
    b: jax.Array
    """B, likewise: [outputs, columns]."""
    owners: jax.Array
    """int32 [columns]: the adapter of each column, -1 for padding."""
    rows: jax.Array
    """int32 [rows]: the adapter of each row of the step, 0 for none."""


@dataclass(frozen=True, slots=True)
class AdaptedMatrix:
    """A matrix of the model, and those of adapters beside it."""

    base: Weight
    adapters: AdapterMatrices


@dataclass(slots=True)
class AdaptedOps(TiledOps):
    """`TiledOps` whose weights may be adapted. No layer is one fused kernel."""

    @classmethod
    def of(cls, ops: TiledOps) -> AdaptedOps:
        """Return the operations that add their kernels to those of `ops`."""
        return cls(**{each.name: getattr(ops, each.name) for each in fields(ops) if each.init})

    def linear(
        self,
        x: jax.Array,
        weight: Weight | AdaptedMatrix,
        outputs: int,
        bias: jax.Array | None = None,
        live: jax.Array | None = None,
    ) -> jax.Array:
        if not isinstance(weight, AdaptedMatrix):
            return TiledOps.linear(self, x, weight, outputs, bias, live)
        base, own = TiledOps.linear(self, x, weight.base, outputs, bias, live), weight.adapters
        columns = own.owners.shape[0]
        low = TiledOps.linear(self, x, own.a, columns, None, live)
        mine = own.rows[:, None] == own.owners[None, :]
        packed = self.first_columns(jnp.where(mine, low, np.float32(0)), columns, None, 0.0, live)
        added = TiledOps.linear(self, packed, own.b, outputs, None, live)
        return jnp.where((own.rows > 0)[:, None], base + added, base)

    def mlp(
        self,
        x: jax.Array,
        gate_up: Weight | AdaptedMatrix,
        down: Weight | AdaptedMatrix,
        hidden: int,
        ffn: int,
        activation: Activation,
        live: jax.Array | None = None,
    ) -> jax.Array:
        if not isinstance(gate_up, AdaptedMatrix) and not isinstance(down, AdaptedMatrix):
            return TiledOps.mlp(self, x, gate_up, down, hidden, ffn, activation, live)
        both = self.linear(x, gate_up, 2 * ffn, None, live)
        return self.linear(self.activate(both, activation, gated=True, live=live), down, hidden, None, live)

    def fused_layer(
        self,
        state: LayerState,
        weights: DenseWeights,
        angles: RopeAngles | None,
        cache: KvLayout,
        number: int,
        config: ModelConfig,
        step: StepRows,
    ) -> LayerState | None:
        return None


@dataclass(frozen=True, slots=True)
class AdaptedPlainOps(PlainOps):
    """`PlainOps` whose weights may be adapted, for devices that are no CPU."""

    def linear(
        self,
        x: jax.Array,
        weight: Weight | AdaptedMatrix,
        outputs: int,
        bias: jax.Array | None = None,
        live: jax.Array | None = None,
    ) -> jax.Array:
        if not isinstance(weight, AdaptedMatrix):
            return PlainOps.linear(self, x, weight, outputs, bias, live)
        base, own = PlainOps.linear(self, x, weight.base, outputs, bias, live), weight.adapters
        low = PlainOps.linear(self, x, own.a, own.owners.shape[0])
        mine = own.rows[:, None] == own.owners[None, :]
        added = PlainOps.linear(self, jnp.where(mine, low, np.float32(0)).astype(self.dtype), own.b, outputs)
        return jnp.where((own.rows > 0)[:, None], base + added, base)
