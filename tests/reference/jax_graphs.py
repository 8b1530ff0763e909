"""The functions that IREE compiles for GPUs, evaluated by JAX: parameters and layers without a compilation."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.engine.runner import Chunk
from workers.iree.batch_inputs import RopeTable
from workers.iree.model.decoder import StepInputs, forward, head, rope_frequencies
from workers.iree.model.kv_layout import KvLayout
from workers.iree.model.ops import StepRows
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.stored_parameters import pack_parameter, stored_parameters


class JaxGraphs:
    """A checkpoint in float32, for one chunk of tokens at a time."""

    def __init__(self, path: Path, context: int) -> None:
        self._config = config = ModelConfig.from_dir(path)
        self._ops, files = PlainOps("float32"), open_weights(path)
        stored = stored_parameters(config, self._ops, files, "none")
        self._weights = {each.name: jnp.asarray(pack_parameter(each, files, self._ops)) for each in stored}
        self._cache = KvLayout.of(config, 1, context, 16)
        self._angles = RopeTable(*rope_frequencies(config, context), context)

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        """float32 [tokens, vocab] of a chunk at the start of a slot."""
        rows = np.arange(len(chunk.tokens))[None]
        cos, sin = self._angles.at(rows)
        step = StepRows(jnp.zeros(1, jnp.int32), jnp.asarray(rows, jnp.int32))
        inputs = StepInputs(jnp.asarray([chunk.tokens]), jnp.asarray(cos), jnp.asarray(sin), step)
        kv = jnp.zeros(self._cache.shape, jnp.float32)
        hidden, *_ = forward(self._config, self._ops, self._cache, self._weights, inputs, kv)
        return np.asarray(head(self._config, self._ops, self._weights, hidden))
