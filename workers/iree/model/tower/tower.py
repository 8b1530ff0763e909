"""A vision tower as JAX functions over one block of patches, as its `VisionConfig` describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.lazy_jax import jax, jnp, lax
from workers.iree.model.ops import LayerNormWeights, NormWeights, RopeAngles
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.model.tower.attention import PlainAttention, TiledAttention
from workers.iree.model.tower.layout import TowerLayout
from workers.vision.config import Merger, Mix, VisionConfig

Weights: TypeAlias = "Mapping[str, jax.Array]"
"""The parameters of a layer or merger, as `TowerLayout` names them."""


@dataclass(frozen=True, slots=True)
class TowerParts:
    """The parts of a tower. Rows of patches are float32 [block, hidden], padded."""

    layout: TowerLayout
    attention: TiledAttention | PlainAttention

    @property
    def config(self) -> VisionConfig:
        return self.layout.config

    @property
    def ops(self) -> TiledOps | PlainOps:
        return self.attention.ops

    def embed(self, values: jax.Array, added: jax.Array, w: Weights) -> jax.Array:
        """Embed patches, float32 [block, values], and add what the host computed of their places."""
        config, size = self.config, self.config.hidden
        if config.values_norm is not None:
            whole = _normed(values[:, : config.patch_values], config.values_norm, config.eps, w, "values_norm")
            values = jnp.pad(whole, ((0, 0), (0, self.layout.inputs.padded - config.patch_values)))
        x = self.ops.linear(self._operand(values), w["patch"], self.layout.hidden, w.get("patch_bias"))
        if config.patch_norm is not None:
            x = self._padded(_normed(x[:, :size], config.patch_norm, config.eps, w, "patch_norm"))
        x = x + added
        if config.placed_norm is not None:
            x = self._padded(_normed(x[:, :size], config.placed_norm, config.eps, w, "placed_norm"))
        return x

    def keys(
        self, x: jax.Array, angles: RopeAngles | None, rows: jax.Array, kv: jax.Array, w: Weights
    ) -> tuple[jax.Array, jax.Array]:
        """Return a layer's queries of patches, and its cache with their keys and values."""
        _, h = self.ops.norm(x, None, None, self._norm(w, "norm1"), self.config.eps)
        width = self.config.heads * self.layout.lanes
        if self.config.clipped:
            qkv = jnp.concatenate([self._linear(h, w, name, self.layout.hidden, width) for name in "qkv"], axis=1)
        else:
            qkv = self._linear(h, w, "qkv", self.layout.hidden, 3 * width)
        norms = (w["q_norm"], w["k_norm"]) if self.config.qk_norm else ()
        return self.attention.write(qkv, angles, norms, kv, rows)

    def layer(self, x: jax.Array, q: jax.Array, kv: jax.Array, ranges: jax.Array, w: Weights) -> jax.Array:
        """Return the patches after a layer."""
        ops, eps, hidden = self.ops, self.config.eps, self.layout.hidden
        mixed = self.attention.attend(q, kv, ranges)
        delta = self._linear(mixed, w, "o", self.config.heads * self.layout.lanes, hidden)
        x, h = ops.norm(x, delta, w.get("post1"), self._norm(w, "norm2"), eps)
        delta = self._mlp(h, w)
        return ops.norm(x, delta, w["post2"], None, eps)[0] if self.config.sandwich else x + delta

    def merge(self, x: jax.Array, merger: Merger, w: Weights, last: Weights) -> jax.Array:
        """Return the tokens of groups of patches, float32 [block / group, output]. `last` are the parameters of the
        last norm and of the standardization; empty for a tap."""
        config, hidden = self.config, self.config.hidden
        x = x[:, :hidden]
        if "norm" in last:
            x = _normed(x, config.norm, config.eps, last)
        groups = x.reshape(-1, config.group, hidden)
        if merger.norm_each:
            groups = _normed(groups, merger.norm, merger.eps, w)
        x = groups.reshape(len(groups), -1) if merger.pooling == "concat" else jnp.mean(groups, axis=1)
        if merger.scale != 1:
            x = x * np.float32(merger.scale)
        if "standard_bias" in last:
            x = (x - last["standard_bias"]) * last["standard_scale"]
        if not merger.norm_each:
            x = _normed(x, merger.norm, merger.eps, w)
        h = self._operand(self._whole(x))
        for number, mix in enumerate(merger.mixes):
            h = self._mixed(h, mix, merger.eps, w, f"mix_{number}")
        if merger.inner and merger.gated:
            both = self.ops.linear(h, w["gate_up"], 2 * self._width(merger.inner), w.get("gate_up_bias"))
            assert merger.activation is not None, "a gate has one"
            h = self.ops.activate(both, merger.activation, gated=True)
        elif merger.inner:
            up = self.ops.linear(h, w["up"], self._width(merger.inner), w.get("up_bias"))
            assert merger.activation is not None, "there is one between two linear layers"
            h = self.ops.activate(up, merger.activation, gated=False)
        return self.ops.linear(h, w["down"], self._width(config.output), w.get("down_bias"))[:, : config.output]

    def _mixed(self, h: jax.Array, mix: Mix, eps: float, w: Weights, name: str) -> jax.Array:
        """Return the operand that one of a merger's further linear layers makes of another one."""
        x = self.ops.linear(h, w[name], self._width(mix.outputs), w.get(f"{name}_bias"))
        if mix.norm is not None:
            x = self._whole(_normed(x[:, : mix.outputs], mix.norm, eps, w, f"{name}_norm"))
        return self._operand(x) if mix.activation is None else self.ops.activate(x, mix.activation, gated=False)

    def _mlp(self, h: jax.Array, w: Weights) -> jax.Array:
        config, ops, hidden, mlp = self.config, self.ops, self.layout.hidden, self.layout.mlp
        if config.gated and not config.biases and not config.clipped:
            return ops.mlp(h, w["gate_up"], w["down"], hidden, mlp, config.activation)
        if config.gated and config.clipped:
            up = jnp.concatenate([self._linear(h, w, name, hidden, mlp) for name in ("gate", "up")], axis=1)
        elif config.gated:
            up = self._linear(h, w, "gate_up", hidden, 2 * mlp)
        else:
            up = self._linear(h, w, "up", hidden, mlp)
        return self._linear(ops.activate(up, config.activation, gated=config.gated), w, "down", mlp, hidden)

    def _linear(self, h: jax.Array, w: Weights, name: str, inputs: int, outputs: int) -> jax.Array:
        clip = w.get(f"{name}_clip")
        if clip is not None:
            h = self._operand(jnp.clip(self._values(h, inputs), clip[0], clip[1]))
        out = self.ops.linear(h, w[name], outputs, w.get(f"{name}_bias"))
        return out if clip is None else jnp.clip(out, clip[2], clip[3])

    def _norm(self, w: Weights, name: str) -> NormWeights:
        return w[name] if self.config.norm == "rms" else LayerNormWeights(w[name], w[f"{name}_bias"])

    def _operand(self, x: jax.Array) -> jax.Array:
        return self.ops.norm(x, None, None, None, self.config.eps)[1]

    def _values(self, h: jax.Array, width: int) -> jax.Array:
        """Return the values of an operand, float32 [rows, width]."""
        if not isinstance(self.ops, TiledOps):
            return h.astype(jnp.float32)
        per_word = self.ops.arithmetic.per_word
        kind = jnp.float32 if per_word == 1 else jnp.dtype(self.ops.dtype)
        return lax.bitcast_convert_type(h[:, : width // per_word], kind).reshape(len(h), width).astype(jnp.float32)

    def _width(self, size: int) -> int:
        return size if self.layout.padding is None else -(-size // LANES) * LANES

    def _padded(self, x: jax.Array) -> jax.Array:
        """Pad rows of the hidden size to whole vectors."""
        missing = self.layout.hidden - x.shape[1]
        return jnp.pad(x, ((0, 0), (0, missing))) if missing else x

    def _whole(self, x: jax.Array) -> jax.Array:
        """Pad rows to whole vectors."""
        missing = self._width(x.shape[1]) - x.shape[1]
        return jnp.pad(x, ((0, 0), (0, missing))) if missing else x


def _normed(x: jax.Array, kind: str | None, eps: float, w: Weights, name: str = "norm") -> jax.Array:
    """Return the norm of the last dimension, with the weights `NAME` and `NAME_bias`."""
    if kind is None:
        return x
    if kind == "layer":
        x = x - jnp.mean(x, -1, keepdims=True)
    x = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + np.float32(eps)) * w[name]
    return x + w[f"{name}_bias"] if kind == "layer" else x
