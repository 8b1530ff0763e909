"""The graphs of an encoder: one for each length of sequences that share a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.checkpoints.encoders.config import EncoderConfig
from workers.engine.encoders.encoder_runner import CALL_ROWS, CALL_SEQUENCES
from workers.iree.build.lower import Graph, lower_module, struct
from workers.iree.build.source_digest import source_digest
from workers.iree.kernels.ir.live_rows import SEQUENCE_ROWS
from workers.iree.lazy_jax import ArraySpec, jax, jax_versions, jnp
from workers.iree.model.encoder.forward import EncoderInputs, Weights, encode
from workers.iree.model.encoder.operations import EncoderRows, PlainEncoderOps, TiledEncoderOps
from workers.iree.model.stored_parameters import Stored

ENCODE = "encode"
CAPACITIES = (128, 512, 2048, 8192, 32768)
"""Tokens of the longest sequence of each graph for CPUs, which leaves padding out: larger ones only take more memory
for a moment."""
PLAIN_CAPACITIES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Those for other devices, which compute padding."""
PLAIN_ROWS = 256
"""Rows of a call on other devices, at least."""
LONG_SEQUENCES = 8
"""Sequences of a call of the graphs for CPUs but the first one: those that are longer than it takes are fewer."""


@dataclass(frozen=True, slots=True)
class CallSize:
    """The sizes of one graph."""

    capacity: int
    """Tokens of the longest sequence."""
    blocks: int
    tokens: int
    """Rows of each of the blocks, which are of one sequence."""
    sequences: int

    @property
    def name(self) -> str:
        return f"{ENCODE}_{self.capacity}"

    def blocks_of(self, length: int) -> int:
        """Return the blocks of a sequence of so many tokens."""
        return -(-length // self.tokens)


@dataclass(frozen=True, slots=True)
class EncoderPlan:
    """The graphs of one encoder on one device, by their names."""

    config: EncoderConfig
    ops: TiledEncoderOps | PlainEncoderOps
    weights: Sequence[Stored]
    context: int

    def sizes(self) -> list[CallSize]:
        """Return the sizes of the graphs, in rising order of their sequences' length."""
        tiled = isinstance(self.ops, TiledEncoderOps)
        steps = CAPACITIES if tiled else PLAIN_CAPACITIES
        least = -(-self.context // SEQUENCE_ROWS) * SEQUENCE_ROWS
        return [self._size(each, tiled=tiled) for each in sorted({min(step, least) for step in steps} | {least})]

    def _size(self, capacity: int, *, tiled: bool) -> CallSize:
        if not tiled:
            sequences = max(1, PLAIN_ROWS // capacity)
            return CallSize(capacity, sequences, capacity, sequences)
        blocks = max(CALL_ROWS, capacity) // SEQUENCE_ROWS
        most = CALL_SEQUENCES if capacity <= CAPACITIES[0] else LONG_SEQUENCES
        return CallSize(capacity, blocks, SEQUENCE_ROWS, min(blocks, most))

    def required(self) -> list[tuple[str, ...]]:
        """Return the fewest graphs that can serve everything, those of one module together."""
        names = tuple(size.name for size in self.sizes())
        # On other devices those are one module, so that the device holds the weights once.
        return [names] if isinstance(self.ops, PlainEncoderOps) else [(names[-1],)]

    def optional(self) -> list[tuple[str, ...]]:
        """Return the graphs that make short texts cheaper."""
        if isinstance(self.ops, PlainEncoderOps):
            return []
        return [(size.name,) for size in self.sizes()[:-1]]

    def everything(self) -> list[tuple[str, ...]]:
        """Return all graphs."""
        return self.required() + self.optional()

    def size_of(self, name: str) -> CallSize:
        """Return the size of a graph."""
        return next(size for size in self.sizes() if size.name == name)

    @property
    def block(self) -> int:
        """Rows to which a sequence is rounded up in a call with others, where padding is left out; otherwise 1."""
        return SEQUENCE_ROWS if isinstance(self.ops, TiledEncoderOps) else 1

    @property
    def angles(self) -> int:
        """Rotary angles of a row, of all rotary embeddings together."""
        return sum(rope.dims for rope in self.config.ropes) // 2

    def scratch(self, size: CallSize) -> ArraySpec:
        """Return the type of the scratch cache of a call."""
        return struct(self.ops.scratch_shape(self.config, size.capacity, size.sequences), self.ops.dtype)

    def describe(self, names: Sequence[str]) -> str:
        """Return everything that the text of `module` depends on."""
        return "\n".join([*names, repr(self), *jax_versions(), source_digest(__name__)])

    def module(self, names: Sequence[str]) -> str:
        """Return the MLIR of one module with these graphs."""
        needed = {stored.name: struct(stored.shape, stored.dtype) for stored in self.weights}
        graphs = [self._graph(self.size_of(name)) for name in names]
        return lower_module(graphs, needed, self.ops.bodies if isinstance(self.ops, TiledEncoderOps) else {})

    def _graph(self, size: CallSize) -> Graph:
        """Tokens, segments, own and last positions int32 [blocks, tokens], slots int32 [blocks] (, cos and sin float32
        [blocks, tokens, angles]), the scratch cache -> the hidden states float32 [rows, hidden], the scratch cache."""

        def graph(*values: Any) -> tuple[jax.Array, ...]:
            tokens, types, own, last, slots, *others, scratch, arrays = values
            cos, sin = others or (own, own)
            rows = EncoderRows(slots, own, last, size.capacity, size.sequences, self._live(own, size))
            inputs = EncoderInputs(tokens, types, cos, sin, rows)
            return encode(self.config, self.ops, self._typed(arrays), inputs, scratch)

        shape = (size.blocks, size.tokens)
        angles = [struct((*shape, self.angles), "float32")] * 2 if self.angles else []
        inputs = (*[struct(shape, "int32")] * 4, struct(shape[:1], "int32"), *angles, self.scratch(size))
        return Graph(size.name, graph, inputs, in_place=((len(inputs) - 1, 1),))

    def _live(self, own: jax.Array, size: CallSize) -> jax.Array | None:
        if isinstance(self.ops, PlainEncoderOps):
            return None
        return jnp.sum(own[:, 0] < size.capacity, dtype=jnp.int32).reshape(1) * size.tokens

    def _typed(self, arrays: Mapping[str, jax.Array]) -> Weights:
        """Return the parameters with quantized matrices as such."""
        stored = {each.name: each for each in self.weights}
        return {name: stored[name].typed(array) for name, array in arrays.items()}
