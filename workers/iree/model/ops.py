"""The operations whose form depends on the device: products with stored weights, norms, and the KV cache.

`workers.iree.model.tiled_ops` implements them for CPUs, `workers.iree.model.plain_ops` for every other device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.parts import Activation, GatedDelta, Mamba2
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.lazy_jax import jax
from workers.iree.model.kv_layout import KvLayout
from workers.iree.model.packed_matrix import Weight

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepRows:
    """The places of a step's rows in the KV cache."""

    slots: jax.Array
    """int32 [batch]: the slot of each sequence. A step of all slots has them in order."""
    rows: jax.Array
    """int32 [batch, tokens]: the cache row of each token, which sees the rows up to its own. A token whose row is
    `KvLayout.attended` or more is padding, and its result means nothing."""
    live: jax.Array | None = None
    """int32 [1]: how many rows are live, the first ones of the step; padding rows follow, whole sequences of them.
    Operations may leave padding rows out. None is all rows."""
    ends: jax.Array | None = None
    """int32 [batch, tokens]: the row before which each token attends, at least the one after its own. None is that one
    for all of them."""

    @property
    def scattered(self) -> bool:
        """Every sequence has one row, as in a decode step."""
        return int(self.rows.shape[1]) == 1


@dataclass(frozen=True, slots=True)
class RopeAngles:
    """The cosines and sines of a step's rotary angles."""

    cos: jax.Array
    sin: jax.Array
    """float32 [rows, rotated lanes / 2]."""


@dataclass(frozen=True, slots=True)
class LayerNormWeights:
    """The weight and the bias of a LayerNorm, float32 [width]."""

    weight: jax.Array
    bias: jax.Array | None


NormWeights: TypeAlias = "jax.Array | LayerNormWeights"
"""The weights of a norm: of an RMS norm, or of a LayerNorm."""


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """The weights of a layer without experts, and of the norm that the next one begins with; None where a model has
    none. Norms and biases are float32."""

    qkv: Weight
    qkv_bias: jax.Array | None
    heads: tuple[jax.Array, jax.Array] | None
    """Norms of the heads of queries and keys."""
    o: Weight
    o_bias: jax.Array | None
    after_attention: jax.Array | None
    before_mlp: jax.Array | None
    gate_up: Weight
    down: Weight
    after_mlp: jax.Array | None
    following: jax.Array | None


@dataclass(frozen=True, slots=True)
class ExpertBiases:
    """The biases of a mixture of experts, float32, those of all experts one after the other."""

    router: jax.Array
    """[count]."""
    up: jax.Array
    """[count * 2 * ffn], of each expert those of the gate first."""
    down: jax.Array
    """[count * hidden]."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The recurrent states, float32 [states, values], and where the state of a layer begins in each.

    On a CPU every row has the places of the states before and after it; on other devices the number of a slot is the
    place of its state.
    """

    states: jax.Array
    offset: int
    attended: int
    """`KvLayout.attended`: rows from here on are padding, which changes no state."""
    places: jax.Array | None = None
    """int32 [2, rows], negative for padding."""


@dataclass(frozen=True, slots=True)
class Taps:
    """The weights of a convolution."""

    weights: jax.Array
    """float32 [taps, channels], the oldest row's first."""
    bias: jax.Array | None = None
    """float32 [channels]."""
    first: int = 0
    """The value of a row at which the channels begin."""


@dataclass(frozen=True, slots=True)
class MambaWeights:
    """The constants of the heads of a Mamba-2 layer, float32 [heads] each."""

    decay: jax.Array
    """The logarithms of the decays in a step of 1."""
    step_bias: jax.Array
    skip: jax.Array
    """Factors of the inputs that are added to outputs."""


LayerState: TypeAlias = "tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]"
"""The values that a layer passes to the next: x float32 [rows, hidden], its norm as an operand, the KV cache, and the
barrier counters of fused kernels, None before the first."""


class Ops(Protocol):
    """The operations that the model needs from a device. JAX traces the methods, except those about stored weights.

    An *operand* is the left side of a product, in the form that the device wants.
    """

    @property
    def dtype(self) -> str:
        """The type of weights, operands and KV cache."""

    def stored_shape(self, outputs: int, inputs: int) -> Shape:
        """Return the shape in which `store` stores a matrix."""

    def store(self, matrix: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return a matrix [outputs, inputs] as products read it."""

    def operand(self, rows: int, width: int) -> tuple[Shape, str]:
        """Return shape and type of an operand of so many rows and values."""

    def values(self, hidden: int) -> int:
        """Return how many of the `hidden` values of a row are not padding."""

    def embedding(self, table: Weight, tokens: jax.Array) -> jax.Array:
        """Look tokens up in a table that is stored in rows or quantized: float32 [len(tokens), hidden]."""

    def norm(
        self,
        x: jax.Array,
        delta: jax.Array | None,
        after: jax.Array | None,
        before: NormWeights | None,
        eps: float,
        multiplier: float = 1.0,
        live: jax.Array | None = None,
        *,
        per_layer: bool = False,
    ) -> tuple[jax.Array, jax.Array]:
        """Return x + delta * multiplier, float32 [rows, width], and its norm with the weights `before` as an operand.

        With the weight `after` it is delta's RMS norm that is multiplied and added; without `before` the operand is the
        sum itself. Padding rows (see `StepRows.live`) are undefined. `per_layer` rows have the width of one layer's own
        embeddings.
        """

    def linear(
        self,
        x: jax.Array,
        weight: Weight,
        outputs: int,
        bias: jax.Array | None = None,
        live: jax.Array | None = None,
    ) -> jax.Array:
        """Multiply an operand by a stored weight (, plus float32 [outputs]) -> float32 [rows, outputs].

        Padding rows are undefined.
        """

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
        """Return the product of act(gate) * up and `down`, float32 [rows, hidden].

        `x` has the width `hidden`, `gate_up` is [2 * ffn, hidden], gates first, and `down` is [hidden, ffn].

        Padding rows are undefined.
        """

    def activate(
        self, x: jax.Array, activation: Activation, *, gated: bool, live: jax.Array | None = None
    ) -> jax.Array:
        """Return act(gate) * up of float32 [rows, 2 * ffn], gates first, or without gates act(x) of float32
        [rows, ffn], as an operand of width ffn. Padding rows are undefined."""

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
        """Return what a mixture of experts adds to the rows of an operand: float32 [rows, hidden]. `up` and `down` are
        those of all experts, one after the other. `shared` is what the shared expert computes, float32 [rows, hidden],
        and `gate` the logits of its gate, float32 [rows, 1]. `bias` is `ExpertRouter.bias`, float32 [experts]. `read`
        are the rows that the router reads, an operand, if it reads others, and `scales` factors of the experts'
        weights, float32 [experts]."""

    def rope_and_cache(
        self,
        qkv: jax.Array,
        angles: RopeAngles | None,
        norms: tuple[jax.Array, jax.Array] | None,
        kv: jax.Array,
        cache: KvLayout,
        layer: int,
        config: ModelConfig,
        step: StepRows,
    ) -> tuple[jax.Array, jax.Array]:
        """Norm the heads of qkv, float32 [rows, lanes of all heads], rotate them, and write keys and values to the
        layer's array of the cache. A layer that reads those of another one has queries alone.

        Returns the queries as `attend` takes them, and the array.
        """

    def attend(
        self,
        q: jax.Array,
        kv: jax.Array,
        cache: KvLayout,
        layer: int,
        config: ModelConfig,
        step: StepRows,
        sinks: jax.Array | None = None,
    ) -> jax.Array:
        """Attend from queries to the layer's array of the cache, within its window -> an operand of width heads *
        lanes of a value. `sinks` are logits, float32 [heads], that take part in the sum of a head's softmax."""

    def first_columns(
        self,
        x: jax.Array,
        columns: int,
        weight: jax.Array | None,
        eps: float,
        live: jax.Array | None = None,
    ) -> jax.Array:
        """Return the first columns of x, float32 [rows, width], or with a `weight` their RMS norm, as an operand.
        Padding rows are undefined."""

    def head_linear(
        self, x: jax.Array, weight: jax.Array, heads: int, live: jax.Array | None = None, *, operand: bool
    ) -> jax.Array:
        """Multiply the columns of each head of an operand by its stored matrix, of those that `weight` has one below
        the other -> float32 [rows, heads * outputs], or an `operand`. Padding rows are undefined."""

    def latent_rows(
        self,
        queries: jax.Array,
        projected: jax.Array,
        multiplied: jax.Array,
        weight: jax.Array,
        config: ModelConfig,
        live: jax.Array | None = None,
    ) -> jax.Array:
        """Return queries, keys and values of latent attention as `rope_and_cache` takes them, float32 [rows,
        (heads + 1) * keys + rank]: the lanes with positions first, then those without.

        `queries` are float32 [rows, width], first the lanes without positions of all heads, then those with them.
        `projected` are float32 [rows, width], whose last columns are the latent, which is normed with `weight`, and
        the key's lanes with positions. `multiplied` are the queries' lanes without positions times the matrices of the
        keys, float32 [rows, heads * rank]. Padding rows are undefined.
        """

    def convolution(
        self, x: jax.Array, taps: Taps, recurrence: Recurrence, step: StepRows, *, gated: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Convolve the channels of rows.

        Gated, as in LFM2, rows are B, C and x, and the result is C * conv(B * x) as an operand; otherwise it is
        silu(conv(x)) of a row's channels, float32 [rows, channels]. Also returns the states, of which a
        layer has the last taps - 1 inputs. Rows of one slot are in order. Padding rows are undefined.
        """

    def gated_delta(
        self,
        x: jax.Array,
        gates: jax.Array,
        constants: tuple[jax.Array, jax.Array],
        sizes: GatedDelta,
        recurrence: Recurrence,
        step: StepRows,
    ) -> tuple[jax.Array, jax.Array]:
        """Apply the gated delta rule to rows of queries, keys and values -> float32 [rows, values], and the states.

        `gates` are float32 [rows, 2 * value_heads], those of the updates first; `constants` are the logarithms of the
        decays and their biases, float32 [value_heads] each. Padding rows are undefined.
        """

    def gated_norm(
        self,
        x: jax.Array,
        projected: jax.Array,
        weight: jax.Array,
        sizes: GatedDelta,
        eps: float,
        live: jax.Array | None = None,
    ) -> jax.Array:
        """Return the RMS norm of the heads of x, float32 [rows, values], times `weight` and silu of the last values of
        `projected` as an operand. Padding rows are undefined."""

    def selective_state(
        self,
        x: jax.Array,
        projected: jax.Array,
        weights: MambaWeights,
        sizes: Mamba2,
        recurrence: Recurrence,
        step: StepRows,
    ) -> tuple[jax.Array, jax.Array]:
        """Apply Mamba-2's recurrence to rows of inputs, B and C -> float32 [rows, inner] times silu of the gates, and
        the states.

        `projected` are the values that rows were projected to, which begin with the gates and end with the steps of the
        heads. Padding rows are undefined.
        """

    def group_norm(
        self, x: jax.Array, weight: jax.Array, groups: int, eps: float, live: jax.Array | None = None
    ) -> jax.Array:
        """Return the RMS norm of each group of the values of x, float32 [rows, width], times `weight`, float32 [width],
        as an operand. Padding rows are undefined."""

    def output_gate(self, x: jax.Array, gate: jax.Array, live: jax.Array | None = None) -> jax.Array:
        """Multiply an operand by the sigmoid of a gate, float32 [rows, width] -> an operand. Padding rows are
        undefined."""

    def fused_layer(
        self,
        state: LayerState,
        weights: DenseWeights,
        angles: RopeAngles | None,
        cache: KvLayout,
        number: int,
        config: ModelConfig,
        step: StepRows,
    ) -> LayerState | None:
        """Compute a whole layer without experts; return None where the operations above are to be used."""
