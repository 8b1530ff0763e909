"""The functions that IREE compiles for GPUs, evaluated by JAX: parameters and layers without a compilation."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tests.reference.routing import routed
from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.engine.runner import Chunk
from workers.iree.batch_inputs import RopeTable
from workers.iree.model.decoder import StepInputs, forward, head, rope_frequencies
from workers.iree.model.kv_layout import CacheLayout
from workers.iree.model.ops import ExpertBiases, StepRows
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.stored_parameters import pack_parameter, stored_parameters


class OpsWithExperts(PlainOps):
    """Operations with a mixture of experts, which GPUs do not run: every expert computes every row."""

    def experts(
        self,
        x: jax.Array,
        router: jax.Array,
        up: Any,
        down: Any,
        config: ModelConfig,
        live: jax.Array | None = None,
        shared: jax.Array | None = None,
        gate: jax.Array | None = None,
        bias: jax.Array | None = None,
        biases: ExpertBiases | None = None,
        *,
        read: jax.Array | None = None,
        scales: jax.Array | None = None,
    ) -> jax.Array:
        mixture = config.experts
        assert mixture is not None
        rows = x if read is None else read
        logits = self.linear(rows, router, mixture.count, None if biases is None else biases.router)
        chosen, weights = routed(jnp, logits, mixture, bias)
        weights = weights if scales is None else weights * scales[chosen]
        ups, downs = up.reshape(mixture.count, -1, x.shape[1]), down.reshape(mixture.count, -1, mixture.ffn)
        each = [self._expert(x, ups[e], downs[e], config, e, biases) for e in range(mixture.count)]
        mixed = jnp.take_along_axis(jnp.stack(each, axis=1), chosen[:, :, None], axis=1)
        added = jnp.sum(mixed * weights[:, :, None], axis=1)
        if shared is None:
            return added
        return added + (shared if gate is None else jax.nn.sigmoid(gate) * shared)

    def _expert(
        self,
        x: jax.Array,
        up: jax.Array,
        down: jax.Array,
        config: ModelConfig,
        e: int,
        biases: ExpertBiases | None,
    ) -> jax.Array:
        ffn, hidden = up.shape[0] // 2, config.hidden_size
        if not config.gated:
            return self.linear(self.activate(self.linear(x, up, len(up)), config.activation, gated=False), down, hidden)
        if biases is None:
            return self.mlp(x, up, down, hidden, ffn, config.activation)
        assert config.activation == "clamped_swiglu"  # no other family has biases
        both = self.linear(x, up, 2 * ffn, biases.up.reshape(-1, 2 * ffn)[e])
        gate, ups = jnp.minimum(both[:, :ffn], 7.0), jnp.clip(both[:, ffn:], -7.0, 7.0)
        mixed = (ups + 1) * gate * jax.nn.sigmoid(1.702 * gate)
        return self.linear(mixed.astype(self.dtype), down, hidden, biases.down.reshape(-1, hidden)[e])


class JaxGraphs:
    """A checkpoint in float32, for one chunk of tokens at a time."""

    def __init__(self, path: Path, context: int) -> None:
        self._config = config = ModelConfig.from_dir(path)
        self._ops, files = OpsWithExperts("float32"), open_weights(path)
        stored = stored_parameters(config, self._ops, files, "none")
        self._weights = {each.name: jnp.asarray(pack_parameter(each, files, self._ops)) for each in stored}
        self._cache = CacheLayout.of(config, 1, context, 16)
        self._angles = RopeTable(*rope_frequencies(config, context), context)

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        """float32 [tokens, vocab] of a chunk at the start of a slot."""
        rows = np.arange(len(chunk.tokens))[None]
        cos, sin = self._angles.at(rows)
        step = StepRows(jnp.zeros(1, jnp.int32), jnp.asarray(rows, jnp.int32))
        inputs = StepInputs(jnp.asarray([chunk.tokens]), jnp.asarray(cos), jnp.asarray(sin), step)
        kv = tuple(jnp.zeros(group.shape, jnp.float32) for group in self._cache.groups)
        states = jnp.zeros((1, self._config.state_values), jnp.float32) if self._config.state_layers else None
        hidden, *_ = forward(self._config, self._ops, self._cache, self._weights, inputs, kv, states)
        return np.asarray(head(self._config, self._ops, self._weights, hidden))
