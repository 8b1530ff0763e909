"""The operations of latent attention for a CPU, by kernels."""

from __future__ import annotations

from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.kernels.ir.arithmetic import row_stride
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.latent.head_linear import HeadLinear, head_linear
from workers.iree.kernels.latent.latent_rows import FirstColumns, LatentRows, first_columns, latent_rows
from workers.iree.lazy_jax import jax
from workers.iree.model.kernel_calls import call, floats, named, words
from workers.iree.model.tiled_recurrence import TiledRecurrence


class TiledLatent(TiledRecurrence):
    """The operations of `workers.iree.model.ops.Ops` of latent attention."""

    __slots__ = ()

    def first_columns(
        self,
        x: jax.Array,
        columns: int,
        weight: jax.Array | None,
        eps: float,
        live: jax.Array | None = None,
    ) -> jax.Array:
        rows, width = x.shape
        kind = FirstColumns(rows, width, columns, self.arithmetic, None if weight is None else eps)
        name = named(f"baton_first_columns_{rows}_{width}_{columns}", norm=weight, live=live)
        self.add_kernel(name, first_columns, kind, live=live is not None)
        out: jax.Array = call(name, words(rows, row_stride(columns, self.arithmetic)), x, weight, live)
        return out

    def head_linear(
        self, x: jax.Array, weight: jax.Array, heads: int, live: jax.Array | None = None, *, operand: bool
    ) -> jax.Array:
        tiles, steps, _, k = weight.shape
        rows, inputs, outputs = len(x), steps * k, tiles * LANES // heads
        kind = HeadLinear(rows, heads, inputs, outputs, self.arithmetic, operand, self.threads)
        name = named(f"baton_head_linear_{rows}_{heads}_{outputs}_{inputs}{'_packed' * operand}", live=live)
        self.add_kernel(name, head_linear, kind, live=live is not None)
        width = heads * outputs
        result = words(rows, row_stride(width, self.arithmetic)) if operand else floats(rows, width)
        out: jax.Array = call(name, result, x, weight.reshape(tiles, -1), live)
        return out

    def latent_rows(
        self,
        queries: jax.Array,
        projected: jax.Array,
        multiplied: jax.Array,
        weight: jax.Array,
        config: ModelConfig,
        live: jax.Array | None = None,
    ) -> jax.Array:
        assert config.latent is not None  # asked for by layers with latent attention
        kind = LatentRows(len(queries), config.heads, config.latent, queries.shape[1], projected.shape[1])
        name = named(f"baton_latent_rows_{kind.rows}", live=live)
        self.add_kernel(name, latent_rows, kind, live=live is not None)
        out: jax.Array = call(name, floats(kind.rows, kind.width), queries, projected, multiplied, weight, live)
        return out
