"""The operations of layers with a recurrent state for a CPU, by kernels."""

from __future__ import annotations

from workers.checkpoints.architectures.parts import GatedDelta, Mamba2
from workers.iree.kernels.ir.arithmetic import row_stride
from workers.iree.kernels.recurrent.convolution import Convolution, convolution
from workers.iree.kernels.recurrent.gated_delta import DeltaRule, gated_delta
from workers.iree.kernels.recurrent.gates import gated_norm, group_norm, output_gate
from workers.iree.kernels.recurrent.selective_state import SelectiveState, selective_state
from workers.iree.kernels.recurrent.state_rows import StateShape
from workers.iree.lazy_jax import jax, jnp
from workers.iree.model.kernel_calls import call, floats, named, words
from workers.iree.model.ops import MambaWeights, Recurrence, StepRows, Taps
from workers.iree.model.tiled_matmuls import TiledMatmuls


class TiledRecurrence(TiledMatmuls):
    """The operations of `workers.iree.model.ops.Ops` of layers with a recurrent state."""

    __slots__ = ()

    def convolution(
        self, x: jax.Array, taps: Taps, recurrence: Recurrence, step: StepRows, *, gated: bool
    ) -> tuple[jax.Array, jax.Array]:
        shape, (count, channels) = _shape(recurrence, x), taps.weights.shape
        bias = taps.bias is not None
        kind = Convolution(shape, self.arithmetic, channels, count, x.shape[1], gated, self.threads, taps.first, bias)
        name = named(f"baton_convolution_{shape.rows}_{gated:d}", live=step.live)
        self.add_kernel(name, convolution, kind, live=step.live is not None)
        result = words(len(x), row_stride(channels, self.arithmetic)) if gated else floats(len(x), channels)
        out, states = call(
            name, (result, _states(recurrence)), x, taps.weights, taps.bias, *_operands(recurrence, step)
        )
        return out, states

    def gated_delta(
        self,
        x: jax.Array,
        gates: jax.Array,
        constants: tuple[jax.Array, jax.Array],
        sizes: GatedDelta,
        recurrence: Recurrence,
        step: StepRows,
    ) -> tuple[jax.Array, jax.Array]:
        shape = _shape(recurrence, x)
        scattered = step.scattered
        name = named(f"baton_gated_delta_{shape.rows}_{scattered:d}", live=step.live)
        kind = DeltaRule(shape, sizes, self.threads, scattered)
        self.add_kernel(name, gated_delta, kind, live=step.live is not None)
        results = (floats(len(x), sizes.values), _states(recurrence))
        out, states = call(name, results, x, gates, *constants, *_operands(recurrence, step))
        return out, states

    def selective_state(
        self,
        x: jax.Array,
        projected: jax.Array,
        weights: MambaWeights,
        sizes: Mamba2,
        recurrence: Recurrence,
        step: StepRows,
    ) -> tuple[jax.Array, jax.Array]:
        shape = _shape(recurrence, x)
        scattered = step.scattered
        name = named(f"baton_selective_state_{shape.rows}_{scattered:d}", live=step.live)
        kind = SelectiveState(shape, sizes, self.threads, scattered)
        self.add_kernel(name, selective_state, kind, live=step.live is not None)
        results = (floats(len(x), sizes.inner), _states(recurrence))
        constants = (weights.decay, weights.step_bias, weights.skip)
        out, states = call(name, results, x, projected, *constants, *_operands(recurrence, step))
        return out, states

    def group_norm(
        self, x: jax.Array, weight: jax.Array, groups: int, eps: float, live: jax.Array | None = None
    ) -> jax.Array:
        rows, width = x.shape
        name = named(f"baton_group_norm_{rows}_{width}_{groups}", live=live)
        self.add_kernel(name, group_norm, rows, width, groups, self.arithmetic, eps, live=live is not None)
        out: jax.Array = call(name, words(rows, row_stride(width, self.arithmetic)), x, weight, live)
        return out

    def gated_norm(
        self,
        x: jax.Array,
        projected: jax.Array,
        weight: jax.Array,
        sizes: GatedDelta,
        eps: float,
        live: jax.Array | None = None,
    ) -> jax.Array:
        name = named(f"baton_gated_norm_{len(x)}", live=live)
        self.add_kernel(name, gated_norm, len(x), sizes, self.arithmetic, eps, live=live is not None)
        result = words(len(x), row_stride(sizes.values, self.arithmetic))
        out: jax.Array = call(name, result, x, projected, weight, live)
        return out

    def output_gate(self, x: jax.Array, gate: jax.Array, live: jax.Array | None = None) -> jax.Array:
        name = named(f"baton_output_gate_{len(x)}", live=live)
        self.add_kernel(name, output_gate, len(x), gate.shape[1], self.arithmetic, live=live is not None)
        out: jax.Array = call(name, words(*x.shape), x, gate, live)
        return out


def _shape(recurrence: Recurrence, x: jax.Array) -> StateShape:
    return StateShape(len(x), *recurrence.states.shape)


def _states(recurrence: Recurrence) -> jax.ShapeDtypeStruct:
    return floats(*recurrence.states.shape)


def _operands(recurrence: Recurrence, step: StepRows) -> tuple[jax.Array | None, ...]:
    """Return the operands by which a kernel finds the states."""
    offset = jnp.asarray([recurrence.offset], jnp.int32)
    return recurrence.places, offset, recurrence.states, step.live
