"""The products of a CPU's graphs: of rows with packed matrices, those of few bits and those of experts included."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from workers.checkpoints.architectures.parts import Activation
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.kernels.ir.arithmetic import Arithmetic, row_stride
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.matmul.activation_quantization import ActivationQuantization, quantize_rows
from workers.iree.kernels.matmul.linear import glu_linear, linear
from workers.iree.kernels.matmul.quantized_linear import quantized_linear
from workers.iree.kernels.matmul.quantized_matmul import IntegerDot, QuantizedMatmul
from workers.iree.kernels.moe.experts import combine, experts_down, experts_up
from workers.iree.kernels.moe.quantized_experts import QuantizedExperts, quantized_experts_down, quantized_experts_up
from workers.iree.kernels.moe.routing import Mixture, group, route
from workers.iree.kernels.rowwise.glu import glu
from workers.iree.model.kernel_calls import call, floats, named, numbers, words
from workers.iree.model.packed_matrix import PackedMatrix, Weight


@dataclass(slots=True)
class TiledProducts:
    """What multiplies (see `workers.iree.model.ops.Ops`). Collects the kernels that it used in `bodies`, by name."""

    dtype: str
    arithmetic: Arithmetic
    dot: IntegerDot = "plain"
    """For weights of few bits."""
    threads: int = 1
    """That share a kernel's work. They change how it is split, and no result."""
    bodies: dict[str, str] = field(default_factory=dict, repr=False, kw_only=True)

    @property
    def limbs(self) -> int:
        """Of activations that weights of few bits are multiplied by: float32 asks for what float32 would give."""
        return 3 if self.dtype == "float32" else 1

    def linear(
        self,
        x: jax.Array,
        weight: Weight,
        outputs: int,
        bias: jax.Array | None = None,
        live: jax.Array | None = None,
    ) -> jax.Array:
        if isinstance(weight, PackedMatrix):
            return self._linear_packed(x, weight, outputs, bias, live)
        tiles, steps, _, k = weight.shape
        rows, inputs = x.shape[0], steps * k
        name = named(f"baton_linear_{rows}_{tiles}_{inputs}", bias=bias, live=live)
        self.bodies[name] = linear(
            name,
            rows,
            tiles,
            inputs,
            self.arithmetic,
            bias=bias is not None,
            threads=self.threads,
            live=live is not None,
        )
        out: jax.Array = call(name, floats(rows, tiles * LANES), x, weight.reshape(tiles, -1), bias, live)
        return out if tiles * LANES == outputs else out[:, :outputs]

    def _linear_packed(
        self, x: jax.Array, weight: PackedMatrix, outputs: int, bias: jax.Array | None, live: jax.Array | None
    ) -> jax.Array:
        rows = x.shape[0]
        rounded, levels, sums = self._round(x, weight)
        tiled = QuantizedMatmul(rounded, weight.data.shape[0] * LANES, weight.packing, self.dot, self.threads)
        name = named(tiled.name, bias=bias, live=live)
        self.bodies[name] = quantized_linear(name, tiled, bias=bias is not None, live=live is not None)
        out: jax.Array = call(name, floats(rows, tiled.outputs), levels, sums, weight.data, bias, live)
        return out[:, :outputs]

    def _round(self, x: jax.Array, weight: PackedMatrix) -> tuple[ActivationQuantization, jax.Array, jax.Array]:
        """An operand as a matrix of few bits wants it."""
        rounded = ActivationQuantization.of(x.shape[0], weight.inputs, weight.packing, self.arithmetic, self.limbs)
        self.bodies[rounded.name] = quantize_rows(rounded)
        shapes = [(rounded.levels_shape, jnp.int32), (rounded.scales_shape, jnp.float32)]
        levels, sums = call(rounded.name, [jax.ShapeDtypeStruct(shape, kind) for shape, kind in shapes], x)
        return rounded, levels, sums

    def glu(
        self,
        x: jax.Array,
        weight: Weight,
        inputs: int,
        ffn: int,
        activation: Activation,
        live: jax.Array | None = None,
    ) -> jax.Array:
        rows, tiles = x.shape[0], ffn // LANES
        result = words(rows, row_stride(ffn, self.arithmetic))
        if isinstance(weight, PackedMatrix):
            name = f"baton_glu_{rows}_{ffn}"
            self.bodies[name] = glu(name, rows, ffn, self.arithmetic, activation)
            halves: jax.Array = call(name, result, self.linear(x, weight, 2 * ffn, None, live))
            return halves
        name = named(f"baton_glu_linear_{rows}_{tiles}_{inputs}", live=live)
        self.bodies[name] = glu_linear(
            name, rows, tiles, inputs, self.arithmetic, activation, threads=self.threads, live=live is not None
        )
        out: jax.Array = call(name, result, x, weight.reshape(2 * tiles, -1), live)
        return out

    def experts(
        self,
        x: jax.Array,
        router: jax.Array,
        up: Weight,
        down: Weight,
        config: ModelConfig,
        live: jax.Array | None = None,
    ) -> jax.Array:
        m = _mixture_of(config, x.shape[0])
        routed, combined = (f"baton_experts_{part}_{m.rows}" for part in ("route", "combine"))
        grouped = named(f"baton_experts_group_{m.rows}", live=live)
        self.bodies |= {
            routed: route(routed, m),
            grouped: group(grouped, m, live=live is not None),
            combined: combine(combined, m),
        }
        per, lists = m.experts.per_token, (numbers(m.pairs), *(numbers(m.groups + 1) for _ in range(2)))
        logits = self.linear(x, router, m.experts.count, None, live)
        chosen, weights = call(routed, (words(m.rows, per), floats(m.rows, per)), logits)
        places = call(grouped, lists, chosen, live)
        mixed = self._experts_up(m, x, up, places, config.activation)
        added = self._experts_down(m, mixed, down, places)
        out: jax.Array = call(combined, floats(m.rows, m.hidden), added, weights)
        return out

    def _experts_up(
        self,
        m: Mixture,
        x: jax.Array,
        weight: Weight,
        places: list[jax.Array],
        activation: Activation,
    ) -> jax.Array:
        name, e, operands = self._expert_operands(f"baton_experts_up_{m.rows}", m, x, weight)
        if e is None:
            self.bodies[name] = experts_up(name, m, self.arithmetic, activation, threads=self.threads)
        else:
            self.bodies[name] = quantized_experts_up(name, e, self.arithmetic, activation)
        result = words(m.pairs, row_stride(m.experts.ffn, self.arithmetic))
        out: jax.Array = call(name, result, *operands, *places)
        return out

    def _experts_down(self, m: Mixture, x: jax.Array, weight: Weight, places: list[jax.Array]) -> jax.Array:
        name, e, operands = self._expert_operands(f"baton_experts_down_{m.rows}", m, x, weight)
        self.bodies[name] = (
            experts_down(name, m, self.arithmetic, threads=self.threads)
            if e is None
            else quantized_experts_down(name, e)
        )
        out: jax.Array = call(name, floats(m.pairs, m.hidden), *operands, *places)
        return out

    def _expert_operands(
        self, name: str, m: Mixture, x: jax.Array, weight: Weight
    ) -> tuple[str, QuantizedExperts | None, list[jax.Array]]:
        """The product's name, how its weights are packed where they are of few bits, and what it multiplies."""
        if not isinstance(weight, PackedMatrix):
            return name, None, [x, weight.reshape(len(weight), -1)]
        rounded, levels, sums = self._round(x, weight)
        packed = QuantizedExperts(m, rounded, weight.packing, self.dot, self.threads)
        return f"{name}_{weight.packing.name}", packed, [levels, sums, weight.data]


def _mixture_of(config: ModelConfig, rows: int) -> Mixture:
    assert config.experts is not None  # asked for by layers that have experts
    return Mixture(rows, config.hidden_size, config.experts)
