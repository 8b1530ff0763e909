"""The MLIR of a runner's graphs: what the graphs of `workers.iree.build.graph_list` compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workers.checkpoints.architectures.parts import full_layers
from workers.iree.build.graph_list import EMBEDDED, HIDDEN, QUERIES, SAMPLE, GraphList
from workers.iree.build.lower import Graph, lower_module, struct
from workers.iree.build.source_digest import source_digest
from workers.iree.kernels.sampling.sample import sampling_module
from workers.iree.lazy_jax import ArraySpec, jax, jax_versions, jnp
from workers.iree.lora.adapted_ops import AdaptedOps, AdaptedPlainOps
from workers.iree.lora.lora_plan import ADAPTED, typed
from workers.iree.model.attention_queries import attention_queries
from workers.iree.model.decoder import Parameters, StepInputs, forward, head
from workers.iree.model.kv_layout import KvLayout
from workers.iree.model.mtp import mtp_cache, mtp_forward
from workers.iree.model.ops import StepRows
from workers.iree.model.plain_ops import MaterializingNumpy, PlainOps
from workers.iree.model.state_versions import state_versions
from workers.iree.model.tiled_ops import TiledOps
from workers.sampling import logit_edits as edits
from workers.sampling import logprobs
from workers.sampling import sample as sampling
from workers.sampling.sampling_arrays import SamplingArrays
from workers.sampling.top_candidates import sample_top_candidates

ROWS, KV = 3, 5
"""The positions of the cache rows and of the first array of the KV cache among a step's inputs. Its other arrays
follow, then the recurrent states, if the model has them, and on a CPU their places; the buffer for greedy tokens is
behind all of them."""
FEW_ROWS = 4
"""The most rows of a graph that computes its padding rows: up to four rows cost little more than one."""


@dataclass(frozen=True, slots=True)
class GraphPlan(GraphList):
    """The graphs of one model on one device, and their MLIR."""

    @property
    def last_rows(self) -> ArraySpec:
        """The hidden rows that prefill graphs leave for `head` graphs: one for each chunk of a call."""
        shape, dtype = self.ops.operand(self.head_sizes[-1], self.config.hidden_size)
        return struct(shape, dtype)

    def describe(self, names: Sequence[str]) -> str:
        """Return everything that the text of `module` depends on: it is equal where this is, without tracing."""
        if SAMPLE in names:
            return "\n".join([*names, str(self.config.vocab_size), source_digest(sampling_module.__module__)])
        if self.tower is not None and names == self.tower.names:
            return self.tower.describe()
        lora = self.lora if _are_adapted(names) else None
        plan = repr(replace(self, buckets=(), chunks=(), embeddings=False, queries=False, vision=None, lora=lora))
        parts = [*names, plan, *jax_versions(), source_digest(__name__)]
        if self.vision is not None and any(EMBEDDED in name for name in names):
            parts.append(f"{self.embedded_parts} {self.vision.bidirectional}")
        return "\n".join(parts)

    def module(self, names: Sequence[str]) -> str:
        """Return the MLIR of one module with these graphs; `SAMPLE` is one by itself, and so are those of the vision
        tower."""
        if SAMPLE in names:
            return sampling_module(SAMPLE, self.config.vocab_size)
        if self.tower is not None and names == self.tower.names:
            return self.tower.module()
        graphs = [self._graph(name) for name in names]
        used = () if all(graph.pure for graph in graphs) else self.weights
        needed = {stored.name: struct(stored.shape, stored.dtype) for stored in used}
        if self.lora is not None and _are_adapted(names):
            needed |= self.lora.parameters(self.ops.dtype)
        return lower_module(graphs, needed, {} if isinstance(self.ops, PlainOps) else self.ops.bodies)

    def _graph(self, name: str) -> Graph:
        kind, _, size = name.partition("_")
        if kind.startswith(ADAPTED):
            return self._adapted(name, kind.removeprefix(ADAPTED), int(size))
        if kind == "decode":
            return self._decode(name, int(size))
        if kind == "prefill":
            return self._prefill(name, int(size))
        if kind == EMBEDDED:
            return self._prefill(name, int(size), embedded=True)
        if kind == "head":
            return self._last_head(name, int(size))
        if kind == "score":
            return self._score(name, int(size))
        if kind == HIDDEN:
            return self._hidden_states(name, int(size))
        if kind == "mtp":
            return self._mtp(name, int(size))
        if kind == "rows":
            return self._mtp_rows(name, int(size))
        if kind == QUERIES:
            return self._queries(name, int(size))
        if kind == "copy":
            return self._copy(name)
        return self._on_logits(kind, name, int(size))

    def _step_inputs(self, batch: int, tokens: int) -> tuple[ArraySpec, ...]:
        angles = struct((batch, tokens, sum(rope.dims for rope in self.config.ropes) // 2), "float32")
        rows, slots = struct((batch, tokens), "int32"), struct((batch,), "int32")
        places = [struct((2, batch * tokens), "int32")] if self.has_places else []
        return (rows, angles, angles, rows, slots, *self._kept, *places)

    @property
    def state_shape(self) -> tuple[int, int]:
        """The shape of the recurrent states, float32, those of a slot one after the other; of 0 values if the model has
        none."""
        return self.cache.slots * self.state_versions, self.config.state_values

    @property
    def state_versions(self) -> int:
        """Recurrent states of a slot."""
        return state_versions(self.config, self.cache.slots) if isinstance(self.ops, TiledOps) else 1

    @property
    def has_places(self) -> bool:
        """Steps take the places of the states before and after each row, behind what stays on the device."""
        return self.config.state_values > 0 and isinstance(self.ops, TiledOps)

    @property
    def _kept(self) -> tuple[ArraySpec, ...]:
        """The types of what stays on the device: the KV cache, and the recurrent states if there are any."""
        return (*self._kv, struct(self.state_shape, "float32")) if self.config.state_values else self._kv

    def _kept_in_place(self, first: int) -> tuple[tuple[int, int], ...]:
        """Return the places of what stays among a step's inputs and, from `first` on, among the results."""
        return tuple((KV + number, first + number) for number in range(len(self._kept)))

    @property
    def _kv(self) -> tuple[ArraySpec, ...]:
        """The types of the arrays of the KV cache."""
        return tuple(struct(group.shape, group.dtype(self.ops.dtype)) for group in self.cache.groups)

    def _split(self, values: Sequence[Any]) -> tuple[Sequence[Any], tuple[Any, ...], Sequence[Any]]:
        """Divide a step's inputs into those before the KV cache, its arrays, and what follows."""
        end = KV + len(self.cache.groups)
        return values[:KV], tuple(values[KV:end]), values[end:]

    def _run(
        self,
        values: Sequence[Any],
        weights: Parameters,
        live: jax.Array | None = None,
        embeddings: jax.Array | None = None,
        ends: jax.Array | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Return the normed hidden rows, and further results of a graph: the cache, the recurrent states, and what a
        head for multi-token prediction starts from."""
        (tokens, cos, sin, rows, slots), kv, others = self._split(values)
        bidirectional = "none" if self.vision is None else self.vision.bidirectional
        inputs = StepInputs(tokens, cos, sin, StepRows(slots, rows, live, ends), embeddings, bidirectional)
        hidden, kv, x, states = forward(self.config, self.ops, self.cache, self._typed(weights), inputs, kv, *others)
        return hidden, (*kv, *(() if states is None else (states,)), *((x,) if self.config.mtp else ()))

    def _typed(self, arrays: Mapping[str, jax.Array]) -> Parameters:
        """Return the parameters with quantized matrices as such."""
        stored = {each.name: each for each in self.weights}
        # Plain graphs are one module, which has the matrices of adapters for those of steps with some.
        return {name: typed(stored[name], array) for name, array in arrays.items() if name in stored}

    @property
    def _numpy(self) -> Any:
        """The array namespace in which tokens are sampled."""
        return MaterializingNumpy() if isinstance(self.ops, PlainOps) else jnp

    def _head(self, hidden: jax.Array, weights: Parameters, live: jax.Array | None = None) -> jax.Array:
        return head(self.config, self.ops, self._typed(weights), hidden, live)

    def _live(self, rows: jax.Array) -> jax.Array | None:
        """Return int32 [1], how many of a step's rows [batch, tokens] are of live sequences, where leaving the others
        out is worth it."""
        if not self._skips_padding(rows.size):
            return None
        return jnp.sum(jnp.any(rows < self.cache.attended, axis=1), dtype=jnp.int32).reshape(1) * rows.shape[1]

    def _skips_padding(self, rows: int) -> bool:
        """Return whether a graph of so many rows computes the live ones alone."""
        return isinstance(self.ops, TiledOps) and rows > FEW_ROWS

    def _decode(self, name: str, batch: int) -> Graph:
        """A row of each of some slots, then padding rows -> greedy tokens [batch], logits [batch, vocab], cache.

        On a CPU the tokens are written to the last input, which the host reads without a call.
        """

        def decode(*values: Any) -> tuple[jax.Array, ...]:
            dynamic, weights = values[: len(inputs)], values[-1]
            live = self._live(dynamic[ROWS])
            hidden, kept = self._run(dynamic, weights, live)
            logits = self._head(hidden, weights, live)
            return sampling.greedy(self._numpy, logits), logits, *kept

        inputs = self._step_inputs(batch, 1)
        if isinstance(self.ops, PlainOps):
            return Graph(name, decode, inputs, in_place=self._kept_in_place(2))
        in_place = (*self._kept_in_place(2), (len(inputs), 0))
        return Graph(name, decode, (*inputs, struct((batch,), "int32")), in_place=in_place)

    def _adapted(self, name: str, kind: str, size: int) -> Graph:
        """Return a graph of steps whose rows may have adapters. It has one more input than that of steps without, the
        adapter of each sequence, int32 [batch], 0 for none."""
        lora, ops = self.lora, self.ops
        assert lora is not None, "there are no such graphs without"
        adapted_ops = AdaptedPlainOps(ops.dtype) if isinstance(ops, PlainOps) else AdaptedOps.of(ops)
        own = replace(self, ops=adapted_ops, lora=None)._graph(f"{kind}_{size}")
        tokens = 1 if kind == "decode" else self.block or size

        def adapted(*values: Any) -> tuple[jax.Array, ...]:
            *inputs, adapters, weights = values
            return own.function(*inputs, lora.adapted(weights, adapters, tokens))

        return Graph(name, adapted, (*own.inputs, struct((size // tokens,), "int32")), in_place=own.in_place)

    def _prefill(self, name: str, chunk: int, *, embedded: bool = False) -> Graph:
        """`chunk` rows, in blocks of a slot each -> the last rows; cache.

        The last rows are the hidden rows that `lasts` names, and those of the call before where it is negative. With
        `embedded` there are the embeddings of rows whose token is -1 as well, and where tokens of an image attend to
        each other in both directions the row before which each one attends.
        """
        block = self.block or chunk
        shape = (chunk // block, block)
        given = [struct((*shape, self.embedded_parts * self.config.hidden_size), "float32")] if embedded else []
        given += [struct(shape, "int32")] if embedded and self.has_ends else []

        def prefill(*values: Any) -> tuple[jax.Array, ...]:
            end = len(values) - 1 - len(given)
            *dynamic, lasts, before = values[:end]
            hidden, kept = self._run(dynamic, values[-1], self._live(dynamic[ROWS]), *values[end:-1])
            mine = (lasts >= 0).reshape(-1, *[1] * (hidden.ndim - 1))
            return jnp.where(mine, hidden[jnp.maximum(lasts, 0)], before), *kept

        lasts = struct(self.last_rows.shape[:1], "int32")
        inputs = (*self._block_inputs(chunk), lasts, self.last_rows, *given)
        return Graph(name, prefill, inputs, in_place=self._kept_in_place(1))

    def _last_head(self, name: str, rows: int) -> Graph:
        """Hidden rows that prefill graphs left, and how many -> greedy tokens [rows] and logits [rows, vocab]."""

        def last_head(*values: Any) -> tuple[jax.Array, ...]:
            lasts, count, weights = values
            live = count.reshape(1) if self._skips_padding(rows) else None
            logits = self._head(lasts[:rows], weights, live)
            return sampling.greedy(self._numpy, logits), logits

        return Graph(name, last_head, (self.last_rows, struct((), "int32")), 1)

    def _score(self, name: str, chunk: int) -> Graph:
        """Like prefill -> greedy tokens [chunk] and logits [chunk, vocab] of every row, cache.

        With plain operations the hidden rows follow, for which there is no other graph.
        """
        plain = isinstance(self.ops, PlainOps)

        def score(*values: Any) -> tuple[jax.Array, ...]:
            *dynamic, weights = values
            live = self._live(dynamic[ROWS])
            hidden, kept = self._run(dynamic, weights, live)
            logits = self._head(hidden, weights, live)
            return sampling.greedy(self._numpy, logits), logits, *kept, *([hidden] if plain else [])

        return Graph(name, score, self._block_inputs(chunk), in_place=self._kept_in_place(2))

    def _hidden_states(self, name: str, chunk: int) -> Graph:
        """Like prefill -> the hidden rows of all `chunk` rows, an operand; cache."""

        def hidden_states(*values: Any) -> tuple[jax.Array, ...]:
            *dynamic, weights = values
            hidden, kept = self._run(dynamic, weights, self._live(dynamic[ROWS]))
            return hidden, *kept

        return Graph(name, hidden_states, self._block_inputs(chunk), in_place=self._kept_in_place(1))

    def _block_inputs(self, chunk: int) -> tuple[ArraySpec, ...]:
        block = self.block or chunk
        return self._step_inputs(chunk // block, block)

    def _mtp(self, name: str, rows: int) -> Graph:
        """Rows of the head for multi-token prediction, in which a token stands for the one after that row, and the
        hidden rows of the model -> greedy tokens [rows], logits [rows, vocab], cache, and its own hidden rows."""

        def mtp(*values: Any) -> tuple[jax.Array, ...]:
            (tokens, cos, sin, kv_rows, slots), kv, (hidden, weights) = self._split(values)
            live = self._live(kv_rows)
            inputs, typed = StepInputs(tokens, cos, sin, StepRows(slots, kv_rows, live)), self._typed(weights)
            normed, kv, x = mtp_forward(self.config, self.ops, self.cache, typed, inputs, hidden, kv)
            logits = self._head(normed, weights, live)
            return sampling.greedy(self._numpy, logits), logits, *kv, x

        return Graph(name, mtp, self._mtp_inputs(rows), in_place=self._kv_in_place(2))

    def _mtp_rows(self, name: str, rows: int) -> Graph:
        """Like `_mtp`, but the cache alone."""

        def mtp_rows(*values: Any) -> tuple[jax.Array, ...]:
            (tokens, cos, sin, kv_rows, slots), kv, (hidden, weights) = self._split(values)
            inputs = StepInputs(tokens, cos, sin, StepRows(slots, kv_rows, self._live(kv_rows)))
            typed = self._typed(weights)
            return mtp_cache(self.config, self.ops, self.cache, typed, inputs, hidden, kv)

        return Graph(name, mtp_rows, self._mtp_inputs(rows), in_place=self._kv_in_place(0))

    def _mtp_inputs(self, rows: int) -> tuple[ArraySpec, ...]:
        return (*self._step_inputs(rows, 1)[:KV], *self._kv, self._hidden(rows))

    def _kv_in_place(self, first: int) -> tuple[tuple[int, int], ...]:
        """Return the places of the arrays of the KV cache among a step's inputs and, from `first` on, among the
        results."""
        return tuple((KV + number, first + number) for number in range(len(self._kv)))

    def _queries(self, name: str, rows: int) -> Graph:
        """Rows of one slot -> their queries in each layer without a window, float32 [rows, heads, lanes], cache."""
        ops = self.ops
        if isinstance(ops, PlainOps):
            raise TypeError("queries are read on CPUs only")  # refused when the model is loaded

        def queries(*values: Any) -> tuple[jax.Array, ...]:
            (tokens, cos, sin, kv_rows, slots), kv, (weights,) = self._split(values)
            inputs = StepInputs(tokens, cos, sin, StepRows(slots, kv_rows))
            found, kv = attention_queries(self.config, ops, self.cache, self._typed(weights), inputs, kv)
            return *found, *kv

        layers = len(full_layers(self.config.plan))
        return Graph(name, queries, self._step_inputs(1, rows), in_place=self._kv_in_place(layers))

    def _hidden(self, rows: int) -> ArraySpec:
        return struct((rows, self.config.hidden_size), "float32")

    def _copy(self, name: str) -> Graph:
        """Copy the first `length` rows of slot `source` to slot `target`, whose other rows become zero.

        The rows of the cache are in order, as `PlainOps` has them.
        """
        groups = self.cache.groups

        def copy(*values: Any) -> tuple[jax.Array, ...]:
            arrays, (source, target, length, _) = values[: len(groups)], values[len(groups) :]
            return tuple(_copied(group, kv, source, target, length) for group, kv in zip(groups, arrays, strict=True))

        scalar = struct((), "int32")
        in_place = tuple((number, number) for number in range(len(groups)))
        return Graph(name, copy, (*self._kv, scalar, scalar, scalar), 3, in_place, pure=True)

    def _on_logits(self, kind: str, name: str, rows: int) -> Graph:
        """Logits [rows, vocab] and arguments -> tokens [rows], changed logits, or what `workers.sampling.logprobs`
        needs."""
        parameters = ("float32", "int32", "float32", "float32", "uint32", "uint32", "uint32")
        rare = ("float32", "float32", "float32")
        entries = ("int32", "float32", "float32", "float32", "float32")
        arguments = {
            "unfiltered": [struct((rows,), kind) for kind in parameters],
            "filter": [struct((rows,), kind) for kind in parameters],
            "full": [struct((rows,), kind) for kind in (*parameters, *rare)],
            "narrow": [struct((rows,), kind) for kind in parameters],
            "edit": [struct((rows, edits.ENTRIES), kind) for kind in entries],
            "mask": [struct((rows, -(-self.config.vocab_size // 32)), "uint32")],
            "report": [struct((rows,), "int32")],
        }[kind]

        def on_logits(*values: Any) -> tuple[jax.Array, ...]:
            *arrays, _ = values
            xp = self._numpy
            match kind:
                case "edit":
                    return (edits.apply_edits(xp, *arrays),)
                case "mask":
                    return (edits.apply_mask(xp, *arrays),)
                case "report":
                    return logprobs.report(xp, *arrays)
                case "narrow":
                    return (sample_top_candidates(xp, arrays[0], SamplingArrays(*arrays[1:])),)
            return (sampling.sample(xp, arrays[0], SamplingArrays(*arrays[1:]), filters=kind != "unfiltered"),)

        # IREE scatters into the argument, whether it is marked or not.
        in_place = ((0, 0),) if kind == "edit" else ()
        logits = struct((rows, self.config.vocab_size), "float32")
        return Graph(name, on_logits, (logits, *arguments), in_place=in_place, pure=True)


def _are_adapted(names: Sequence[str]) -> bool:
    """Return whether the graphs of a module are of steps whose rows may have adapters."""
    return any(name.startswith(ADAPTED) for name in names)


def _copied(cache: KvLayout, kv: jax.Array, source: jax.Array, target: jax.Array, length: jax.Array) -> jax.Array:
    """Return an array of the cache after a copy, see `GraphPlan._copy`."""
    zero = jnp.zeros((), jnp.int32)
    taken = jax.lax.dynamic_slice_in_dim(kv, source, 1, axis=2)
    rows = taken.reshape(cache.layers, 2, 1, cache.heads, cache.capacity, cache.row_width)
    # Selected, not multiplied: what is left out may be NaN.
    kept = (jnp.arange(cache.capacity, dtype=jnp.int32) < length)[:, None]
    rows = jnp.where(kept, rows, jnp.zeros((), kv.dtype)).reshape(taken.shape)
    return jax.lax.dynamic_update_slice(kv, rows, (zero, zero, target, zero, zero))
