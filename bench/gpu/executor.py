"""JAX in the place of IREE: it executes the graphs that IREE compiles for a GPU."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.iree.batch_inputs import RopeTable
from workers.iree.build.graph_list import decode_buckets, prefill_chunks
from workers.iree.build.graph_plan import KV, GraphPlan
from workers.iree.build.recipe import PLAIN_CAPACITY_MULTIPLE
from workers.iree.model.decoder import rope_frequencies
from workers.iree.model.kv_layout import CacheLayout
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.stored_parameters import pack_parameter, stored_parameters
from workers.precision import Dtype


def plain_plan(path: Path, dtype: Dtype, slots: int, context: int) -> tuple[GraphPlan, Mapping[str, Any]]:
    """The graphs of every device except a CPU's own, and the weights that they take, as numpy arrays."""
    config = ModelConfig.from_dir(path)
    ops, files = PlainOps(config.dtype if dtype == "auto" else dtype), open_weights(path)
    stored = stored_parameters(config, ops, files, "none")
    cache = CacheLayout.of(config, slots, context, PLAIN_CAPACITY_MULTIPLE)
    plan = GraphPlan(config, ops, cache, stored, decode_buckets(slots)[-1:], prefill_chunks(context))
    return plan, {each.name: pack_parameter(each, files, ops) for each in stored}


class Executor:
    """A plan's graphs, weights on JAX's device, and a cache that is updated in place."""

    def __init__(self, plan: GraphPlan, weights: Mapping[str, Any], context: int) -> None:
        self._plan = plan
        self._slots = plan.cache.slots
        self._weights = jax.device_put(dict(weights))
        self._kv = [jnp.zeros(group.shape, plan.ops.dtype) for group in plan.cache.groups]
        self._angles = RopeTable(*rope_frequencies(plan.config, context), context)
        self._functions: dict[str, Callable[..., Any]] = {}

    def decode(self, tokens: Sequence[int], at: int) -> list[int]:
        """Run a step of all slots at one position, and return the greedy tokens."""
        step = self._function(f"decode_{self._slots}")
        sampled, _, *self._kv = step(*self._inputs(np.array([tokens]).T, at), self._weights)
        greedy: list[int] = np.asarray(sampled).tolist()
        return greedy

    def prefill(self, rows: int) -> float:
        """Seconds of a prefill chunk of one slot."""
        last = jnp.zeros(self._plan.last_rows.shape, self._plan.last_rows.dtype)
        inputs = self._inputs(np.full((1, rows), 5), 0)
        began = time.perf_counter()
        hidden, *self._kv = self._function(f"prefill_{rows}")(
            *inputs, np.array([rows - 1], np.int32), last, self._weights
        )
        np.asarray(hidden)
        return time.perf_counter() - began

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits of every token of a prompt, which the scoring graph holds: [tokens, vocabulary]."""
        size = self._plan.score_chunk
        padded = np.array([[*tokens, *[0] * (size - len(tokens))]])
        _, logits, *self._kv = self._function(f"score_{size}")(*self._inputs(padded, 0), self._weights)
        return np.asarray(logits)[: len(tokens)]

    def _function(self, name: str) -> Callable[..., Any]:
        if name not in self._functions:
            self._functions[name] = jax.jit(self._plan._graph(name).function, donate_argnums=KV)
        return self._functions[name]

    def _inputs(self, tokens: Any, start: int) -> tuple[Any, ...]:
        rows = np.broadcast_to(np.arange(start, start + tokens.shape[1], dtype=np.int32), tokens.shape)
        slots = np.arange(len(tokens), dtype=np.int32)
        return (tokens.astype(np.int32), *self._angles.at(rows), rows, slots, *self._kv)
