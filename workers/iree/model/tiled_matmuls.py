"""The products of a CPU's graphs: linear layers, GLU and experts, with plain or quantized packed weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec

from workers.checkpoints.architectures.parts import Activation
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.kernels.ir.arithmetic import Arithmetic, row_stride
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.matmul.activation_quantization import ActivationQuantization, quantize_rows
from workers.iree.kernels.matmul.integer_dots import PLAIN_DOTS, IntegerDots
from workers.iree.kernels.matmul.linear import glu_linear, linear
from workers.iree.kernels.matmul.quantized_glu import QuantizedGlu, quantized_glu
from workers.iree.kernels.matmul.quantized_linear import quantized_linear
from workers.iree.kernels.matmul.quantized_matmul import QuantizedMatmul
from workers.iree.kernels.moe.experts import combine, experts_down, experts_up
from workers.iree.kernels.moe.quantized_experts import QuantizedExperts, quantized_experts_down, quantized_experts_up
from workers.iree.kernels.moe.router import route
from workers.iree.kernels.moe.routing import Mixture, group
from workers.iree.kernels.rowwise.glu import glu
from workers.iree.lazy_jax import jax, jnp
from workers.iree.model.kernel_calls import call, floats, named, numbers, words
from workers.iree.model.ops import ExpertBiases
from workers.iree.model.packed_matrix import PackedMatrix, Weight

P = ParamSpec("P")


@dataclass(slots=True)
class TiledMatmuls:
    """The operations of `workers.iree.model.ops.Ops` that multiply.

    `bodies` collects the kernels that they use, by name.
    """

    dtype: str
    arithmetic: Arithmetic
    integer_dots: IntegerDots = PLAIN_DOTS
    """For quantized weights."""
    threads: int = 1
    """Threads that share a kernel's work. Their number changes how it is partitioned, and no result."""
    bodies: dict[str, str] = field(default_factory=dict, repr=False, kw_only=True)
    _made: dict[str, object] = field(default_factory=dict, init=False, repr=False, compare=False, kw_only=True)
    """The arguments that each kernel was written from, by its name."""

    @property
    def limbs(self) -> int:
        """Limbs of the activations that quantized weights are multiplied by: in float32 as exact as float32 is."""
        return 3 if self.dtype == "float32" else 1

    def add_kernel(
        self, name: str, write: Callable[Concatenate[str, P], str], *arguments: P.args, **options: P.kwargs
    ) -> None:
        """Add what `write` returns for a name and some arguments to `bodies`. It is not called again for equal ones:
        the layers of a model share their kernels. Raises `ValueError` for a name that another text has."""
        made = (write, arguments, options)
        if self._made.get(name) == made:
            return
        text = write(name, *arguments, **options)
        if self.bodies.setdefault(name, text) != text:
            raise ValueError(f"{name} names two kernels: put what they differ in into the name")
        self._made[name] = made

    def linear(
        self,
        x: jax.Array,
        weight: Weight,
        outputs: int,
        bias: jax.Array | None = None,
        live: jax.Array | None = None,
    ) -> jax.Array:
        if bias is not None:
            bias = jnp.pad(bias, (0, -bias.shape[0] % LANES))
        if isinstance(weight, PackedMatrix):
            return self._quantized_linear(x, weight, outputs, bias, live)
        tiles, steps, _, k = weight.shape
        rows, inputs = x.shape[0], steps * k
        name = named(f"baton_linear_{rows}_{tiles}_{inputs}", bias=bias, live=live)
        options = {"bias": bias is not None, "live": live is not None}
        self.add_kernel(name, linear, rows, tiles, inputs, self.arithmetic, threads=self.threads, **options)
        out: jax.Array = call(name, floats(rows, tiles * LANES), x, weight.reshape(tiles, -1), bias, live)
        return out if tiles * LANES == outputs else out[:, :outputs]

    def _quantized_linear(
        self, x: jax.Array, weight: PackedMatrix, outputs: int, bias: jax.Array | None, live: jax.Array | None
    ) -> jax.Array:
        return self._quantized_product(self._quantize(x, weight, live), weight, outputs, bias, live)

    def _quantized_product(
        self,
        quantized: Sequence[jax.Array],
        weight: PackedMatrix,
        outputs: int,
        bias: jax.Array | None,
        live: jax.Array | None,
    ) -> jax.Array:
        """Multiply levels and scales by a quantized matrix."""
        rows, outputs_of_tiles = quantized[0].shape[1], weight.data.shape[0] * LANES
        kind = self._activations(rows, weight)
        matmul = QuantizedMatmul(kind, outputs_of_tiles, weight.packing, self.integer_dots, self.threads)
        name = named(matmul.name, bias=bias, live=live)
        self.add_kernel(name, quantized_linear, matmul, bias=bias is not None, live=live is not None)
        out: jax.Array = call(name, floats(rows, outputs_of_tiles), *quantized, weight.data, bias, live)
        return out[:, :outputs]

    def _quantize(self, x: jax.Array, weight: PackedMatrix, live: jax.Array | None) -> Sequence[jax.Array]:
        """Quantize an operand for a quantized matrix: levels and scales."""
        kind = self._activations(x.shape[0], weight)
        name = named(kind.name, live=live)
        self.add_kernel(name, quantize_rows, kind, live=live is not None)
        quantized: Sequence[jax.Array] = call(name, _quantized(kind), x, live)
        return quantized

    def _activations(self, rows: int, weight: PackedMatrix) -> ActivationQuantization:
        """Return how rows are quantized for a matrix."""
        return ActivationQuantization.of(
            rows, weight.inputs, weight.packing, self.arithmetic, self.limbs, self.integer_dots
        )

    def mlp(
        self,
        x: jax.Array,
        gate_up: Weight,
        down: Weight,
        hidden: int,
        ffn: int,
        activation: Activation,
        live: jax.Array | None = None,
    ) -> jax.Array:
        if isinstance(gate_up, PackedMatrix) and isinstance(down, PackedMatrix) and live is not None:
            kind = self._activations(x.shape[0], gate_up)
            products = QuantizedMatmul(kind, 2 * ffn, gate_up.packing, self.integer_dots, self.threads)
            fused = QuantizedGlu(products, self._activations(x.shape[0], down), activation)
            if fused.possible:
                return self._quantized_mlp(x, gate_up, down, hidden, fused, live)
        return self.linear(self._glu(x, gate_up, hidden, ffn, activation, live), down, hidden, None, live)

    def _quantized_mlp(
        self, x: jax.Array, gate_up: PackedMatrix, down: PackedMatrix, hidden: int, fused: QuantizedGlu, live: jax.Array
    ) -> jax.Array:
        """An MLP of many rows: what `down` is multiplied by is quantized where it is computed."""
        name = fused.name
        self.add_kernel(name, quantized_glu, fused)
        operands = self._quantize(x, gate_up, live)
        quantized = call(name, _quantized(fused.out), *operands, gate_up.data, live)
        return self._quantized_product(quantized, down, hidden, None, live)

    def _glu(
        self, x: jax.Array, weight: Weight, inputs: int, ffn: int, activation: Activation, live: jax.Array | None
    ) -> jax.Array:
        """Return act(gate) * up as an operand of width ffn."""
        rows, tiles = x.shape[0], ffn // LANES
        result = words(rows, row_stride(ffn, self.arithmetic))
        if isinstance(weight, PackedMatrix):
            return self.activate(self.linear(x, weight, 2 * ffn, None, live), activation, gated=True, live=live)
        name = named(f"baton_glu_linear_{rows}_{tiles}_{inputs}", live=live)
        self.add_kernel(
            name,
            glu_linear,
            rows,
            tiles,
            inputs,
            self.arithmetic,
            activation,
            threads=self.threads,
            live=live is not None,
        )
        out: jax.Array = call(name, result, x, weight.reshape(2 * tiles, -1), live)
        return out

    def activate(
        self, x: jax.Array, activation: Activation, *, gated: bool, live: jax.Array | None = None
    ) -> jax.Array:
        rows, ffn = x.shape[0], x.shape[1] // 2 if gated else x.shape[1]
        name = named(f"baton_{'glu' if gated else 'activate'}_{rows}_{ffn}", live=live)
        self.add_kernel(name, glu, rows, ffn, self.arithmetic, activation, gated=gated, live=live is not None)
        out: jax.Array = call(name, words(rows, row_stride(ffn, self.arithmetic)), x, live)
        return out

    def experts(
        self,
        x: jax.Array,
        router: jax.Array,
        up: Weight,
        down: Weight,
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
        m = _mixture_of(config, x.shape[0])
        names = [f"baton_experts_{part}_{m.rows}" for part in ("route", "group", "combine")]
        choose, grouped = (named(name, live=live) for name in names[:2])
        combined, has = named(names[2], shared=shared, gate=gate, live=live), (shared is not None, gate is not None)
        self.add_kernel(choose, route, m, live=live is not None)
        self.add_kernel(grouped, group, m, live=live is not None)
        self.add_kernel(combined, combine, m, live=live is not None, shared=has[0], gate=has[1])
        per, lists = m.experts.per_token, tuple(numbers(size) for size in m.lists.values())
        router_bias, up_bias, down_bias = (None,) * 3 if biases is None else (biases.router, biases.up, biases.down)
        logits = self.linear(x if read is None else read, router, m.experts.count, router_bias, live)
        chosen, weights = call(choose, (words(m.rows, per), floats(m.rows, per)), logits, bias, live)
        if scales is not None:
            # Within bounds, which IREE does not check: those of padding rows may be anything.
            weights = weights * scales[jnp.clip(chosen, 0, m.experts.count - 1)]
        groups = call(grouped, lists, chosen, live)
        mixed = self._experts_up(m, x, up, groups, config.activation, live, up_bias)
        added = self._experts_down(m, mixed, down, groups, live, down_bias)
        out: jax.Array = call(combined, floats(m.rows, m.hidden), added, weights, shared, gate, live)
        return out

    def _experts_up(
        self,
        m: Mixture,
        x: jax.Array,
        weight: Weight,
        groups: list[jax.Array],
        activation: Activation,
        live: jax.Array | None,
        bias: jax.Array | None,
    ) -> jax.Array:
        name, e, operands = self._expert_operands(f"baton_experts_up_{m.rows}", m, x, weight, live)
        if e is None:
            self.add_kernel(name, experts_up, m, self.arithmetic, activation, threads=self.threads)
        else:
            self.add_kernel(name, quantized_experts_up, e, self.arithmetic, activation)
        result = words(m.pairs, row_stride(m.experts.ffn, self.arithmetic))
        out: jax.Array = call(name, result, *operands, *groups, bias)
        return out

    def _experts_down(
        self,
        m: Mixture,
        x: jax.Array,
        weight: Weight,
        groups: list[jax.Array],
        live: jax.Array | None,
        bias: jax.Array | None,
    ) -> jax.Array:
        live_pairs = None if live is None else live * m.experts.per_token
        name, e, operands = self._expert_operands(f"baton_experts_down_{m.rows}", m, x, weight, live_pairs)
        if e is None:
            self.add_kernel(name, experts_down, m, self.arithmetic, threads=self.threads)
        else:
            self.add_kernel(name, quantized_experts_down, e)
        out: jax.Array = call(name, floats(m.pairs, m.hidden), *operands, *groups, bias)
        return out

    def _expert_operands(
        self, name: str, m: Mixture, x: jax.Array, weight: Weight, live: jax.Array | None
    ) -> tuple[str, QuantizedExperts | None, list[jax.Array]]:
        """Return the product's name, how it is computed where the weight is quantized, and its operands. `live` counts
        the rows of `x`."""
        if not isinstance(weight, PackedMatrix):
            return name, None, [x, weight.reshape(len(weight), -1)]
        kind = self._activations(x.shape[0], weight)
        quantized = QuantizedExperts(m, kind, weight.packing, self.integer_dots, self.threads)
        return f"{name}_{weight.packing.name}", quantized, [*self._quantize(x, weight, live), weight.data]


def _quantized(kind: ActivationQuantization) -> list[jax.ShapeDtypeStruct]:
    """Return the types of levels and scales."""
    shapes = [(kind.levels_shape, jnp.int32), (kind.scales_shape, jnp.float32)]
    return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]


def _mixture_of(config: ModelConfig, rows: int) -> Mixture:
    assert config.experts is not None  # asked for by layers that have experts
    return Mixture(rows, config.experts.width(config.hidden_size), config.experts)
