"""Parts of an architecture: norms, names of tensors, experts, and what differs between layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "gelu", "relu2"]
"""GELU by tanh or by the error function; "relu2" is the square of ReLU."""
NormKind = Literal["rms", "layer"]
"""RMS norm, or LayerNorm, which subtracts the mean (https://arxiv.org/abs/1607.06450)."""
HeadNorm = Literal["each", "own", "all"]
"""Norms of queries and keys: of each head with weights that heads share, of each with its own, or of all heads
together."""
QkvLayout = Literal["parts", "heads", "kv_heads"]
"""Order of the rows of a matrix of queries, keys and values: one kind after the other, or all kinds of each head, or of
each KV head and the queries that it serves."""
MixerKind = Literal["attention", "convolution", "gated_delta"]
"""The way in which a layer mixes its rows with earlier ones. All but attention keep a state of constant size for each
slot."""


@dataclass(frozen=True, slots=True)
class Norms:
    """The names of a layer's norms by their place; None where there is no norm."""

    before_attention: str | None = None
    after_attention: str | None = None
    """The norm of attention's output, before the residual sum."""
    before_mlp: str | None = None
    after_mlp: str | None = None


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """The names of the tensors of a mixture of experts; `{}` is the expert's number."""

    router: str
    gate: str
    up: str
    down: str
    shared_gate_up: tuple[str, ...] = ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj")
    """The expert that computes every row; a single name holds both matrices."""
    shared_down: str = "mlp.shared_expert.down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    """The projection of a row to the gate of that expert."""
    router_scale: str = "router.scale"
    expert_scales: str = "router.per_expert_scale"
    """Vectors of a router that reads rows of its own: the weight of their norm, and a factor of each expert."""
    norms: tuple[str, str, str] = (
        "post_feedforward_layernorm_1",
        "pre_feedforward_layernorm_2",
        "post_feedforward_layernorm_2",
    )
    """Norms of a layer with both MLP and experts: of the MLP's output, and of the experts' input and output."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a layer's matrices; several are stacked along their outputs."""

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    experts: ExpertNames = ExpertNames(
        "mlp.gate", "mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj", "mlp.experts.{}.down_proj"
    )
    o: str = "self_attn.o_proj"
    down: str = "mlp.down_proj"
    head_norms: tuple[str, str] = ("self_attn.q_norm", "self_attn.k_norm")
    """Norms of queries and keys; `{}` is the head's number where each has a tensor of its own."""
    value_norm: str = "self_attn.v_norm"
    derived: tuple[str, ...] = ("self_attn.rotary_emb.inv_freq",)
    """Tensors of layers in old checkpoints that are not read: they follow from config.json."""
    embedding: str = "model.embed_tokens"
    layers: str = "model.layers."
    """Prefix of the names of a layer's tensors, before its number."""
    delta_in: tuple[str, ...] = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z")
    """Queries, keys and values of a gated delta network, and the gate of its output; a single matrix holds them key
    head by key head."""
    delta_gates: tuple[str, ...] = ("linear_attn.in_proj_b", "linear_attn.in_proj_a")
    """The strength of its updates, and its decay; a single matrix as above."""
    layer_scalar: str = "layer_scalar"
    """The factor of a layer's output."""
    per_layer: tuple[str, str, str] = ("per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm")
    """The projections from and to the residual stream beside a layer's own embeddings, and the norm behind them."""
    per_layer_model: tuple[str, str, str] = (
        "model.embed_tokens_per_layer",
        "model.per_layer_model_projection",
        "model.per_layer_projection_norm",
    )
    """The table of these embeddings, the projection of the model's own to those of all layers, and its norm."""
    norm: str = "model.norm"
    """The norm of the last hidden rows."""
    head: str = "lm_head"


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: of `count` experts the `per_token` with the highest router scores compute a row."""

    count: int
    per_token: int
    ffn: int
    normalize: bool
    """The weights of the chosen experts sum to one; otherwise the weights of all experts do."""
    shared_ffn: int = 0
    """Width of the shared expert, a gated MLP that computes every row and is added; 0 is none."""
    shared_gate: bool = False
    """The shared expert's rows are multiplied by the sigmoid of a projection of the row."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """The keys and values of a layer."""

    heads: int
    """KV heads."""
    key_width: int
    """Lanes of a key, and of a query."""
    value_width: int
    """Lanes of a value."""


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """The configuration of one layer: what may differ between the layers of a model."""

    window: int | None = None
    """The attention window in positions, the query's own included; None is no window."""
    rope: int | None = 0
    """The index of the rotary embedding in `ModelConfig.ropes`; None is no positions."""
    experts: bool = False
    """A mixture of experts replaces the MLP."""
    kind: MixerKind = "attention"
    kv_shape: int = 0
    """The index of the shape of keys and values in `ModelConfig.kv_shapes`."""
    kv_source: int | None = None
    """The earlier layer whose keys and values this layer reads: it has none of its own."""
    keys_as_values: bool = False
    """Values are the keys before their norm and rotation: there is no projection of values."""
    ffn_multiple: int = 1
    """The width of the MLP, in those of `ModelConfig.ffn`."""


@dataclass(frozen=True, slots=True)
class PerLayerEmbedding:
    """Embeddings of their own for every layer, Gemma 3n's: with a projection of the model's embedding they gate what a
    layer adds to the residual stream behind its MLP."""

    width: int
    """Values of one layer."""
    vocab: int
    """Tokens that have such embeddings, at least those of the model."""
    scale: float
    """Factor of the embeddings in the table, rounded to the type of the weights."""


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """A gated causal convolution of each channel, LFM2's (https://arxiv.org/abs/2511.23404): C * conv(B * x), where B,
    C and x are projections of a row."""

    channels: int
    taps: int
    """Rows that a convolution sees, the own included: its state has one less."""

    @property
    def state_values(self) -> int:
        """Values of the state of one slot in one layer: [taps - 1, channels]."""
        return (self.taps - 1) * self.channels


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """A gated delta network (https://arxiv.org/abs/2412.06464): a causal convolution of queries, keys and values, and a
    matrix for each value head, which decays and is corrected towards each row's value."""

    key_heads: int
    value_heads: int
    """A multiple of `key_heads`: consecutive value heads share a key head."""
    key_dim: int
    """Lanes of a query and of a key."""
    value_dim: int
    taps: int
    """As in `ShortConvolution`."""

    @property
    def keys(self) -> int:
        """Lanes of all key heads; those of all query heads are as many."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Lanes of all value heads."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def state_values(self) -> int:
        """Values of the state of one slot in one layer: the convolution's [taps - 1, channels], and the matrices
        [value_heads, key_dim, value_dim]."""
        return (self.taps - 1) * self.channels + self.values * self.key_dim


def full_layers(plan: Sequence[LayerConfig]) -> tuple[int, ...]:
    """Return the layers with attention and without a window: they attend to all rows before their own."""
    return tuple(number for number, layer in enumerate(plan) if layer.kind == "attention" and layer.window is None)
