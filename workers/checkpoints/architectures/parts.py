"""Parts of an architecture: norms, names of tensors, experts, and what differs between layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "gelu", "quick_gelu", "relu2", "clamped_swiglu"]
"""GELU by tanh, by the error function, or x * sigmoid(1.702 * x); "relu2" is the square of ReLU. "clamped_swiglu" is
gpt-oss' GLU (up + 1) * gate * sigmoid(1.702 * gate), of gates up to 7 and ups from -7 to 7."""
NormKind = Literal["rms", "layer"]
"""RMS norm, or LayerNorm, which subtracts the mean (https://arxiv.org/abs/1607.06450)."""
HeadNorm = Literal["each", "own", "all"]
"""Norms of queries and keys: of each head with weights that heads share, of each with its own, or of all heads
together."""
QkvLayout = Literal["parts", "heads", "kv_heads"]
"""Order of the rows of a matrix of queries, keys and values: one kind after the other, or all kinds of each head, or of
each KV head and the queries that it serves."""
RouterScore = Literal["softmax", "sigmoid", "sparsemixer"]
"""Scores of experts from their logits: their softmax, their sigmoids, or SparseMixer's
(https://arxiv.org/abs/2409.12136), where each choice weighs its expert by a softmax over those that are near it."""
MixerKind = Literal["attention", "convolution", "gated_delta", "mamba2", "none"]
"""The way in which a layer mixes its rows with earlier ones; "none" is an MLP alone. The others but attention keep a
state of constant size for each slot."""


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
    gate: str | None
    """None: experts have no gate."""
    up: str
    down: str
    shared_gate_up: tuple[str, ...] = ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj")
    """The expert that computes every row; a single name holds both matrices, or the only one of an MLP without a
    gate."""
    shared_down: str = "mlp.shared_expert.down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    """The projection of a row to the gate of that expert."""
    router_bias: str = "mlp.gate.e_score_correction_bias"
    """The whole name of `ExpertRouter.bias`."""
    router_bias_row: bool = False
    """That bias is a matrix of one row."""
    latent: tuple[str, str] = ("mixer.fc1_latent_proj", "mixer.fc2_latent_proj")
    """The projections to the rows that experts compute, and back, where those are latents."""
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
    mamba: str = "mamba"
    """The module of a Mamba-2 layer."""
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
    sinks: str = "self_attn.sinks"
    """The logits of attention sinks, one for each query head."""


@dataclass(frozen=True, slots=True)
class ExpertRouter:
    """The scores by which a row chooses its experts, of equal ones the first. The defaults describe a plain softmax."""

    score: RouterScore = "softmax"
    bias: bool = False
    """Each expert has a bias, which is added to its score where experts are chosen, but not in their weights."""
    groups: int = 1
    """Consecutive experts form so many groups of equal size."""
    kept_groups: int = 1
    """Experts are chosen from the groups with the highest scores, so many."""
    group_best: int = 2
    """The score of a group is the sum of so many highest scores of its experts, bias included: 1 or 2."""
    scale: float = 1.0
    """Factor of the weights of chosen experts."""
    sum_offset: float = 0.0
    """Added to the sum that normalized weights are divided by."""
    least_sum: float = 0.0
    """The least value of that sum."""
    jitter: float = 0.0
    """SparseMixer's: experts are near the best if they fall short of it by at most twice this part."""

    @property
    def by_logits(self) -> bool:
        """The order of the logits is the order of the scores."""
        return self.score == "softmax" and not self.bias and self.groups == 1


@dataclass(frozen=True, slots=True)
class MtpNames:
    """The names of a head for multi-token prediction, and what it starts from; those of MiMo by default."""

    field: str = "num_nextn_predict_layers"
    """The field of config.json with the number of heads."""
    own: str = "model.mtp_layers.0."
    """Prefix of the tensors beside those of the layer, of the first head."""
    layer: str = "model.mtp_layers.0."
    """Prefix of the tensors of its layer."""
    input: str = "input_proj"
    """The projection of a hidden row and an embedding, side by side."""
    token: str = "token_layernorm"
    hidden: str = "hidden_layernorm"
    """The norms of both."""
    final: str = "final_layernorm"
    token_first: bool = False
    """The embedding is before the hidden row."""
    by_presence: bool = False
    """A checkpoint with all tensors has the head, whatever config.json states."""

    @property
    def tensors(self) -> str:
        """Return what the names of the tensors of all heads begin with."""
        return self.own.removesuffix("0.")


MTP_NAMES = MtpNames()
QWEN_MTP = MtpNames(
    "mtp_num_hidden_layers",
    *("mtp.", "mtp.layers.0."),
    *("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
    token_first=True,
    by_presence=True,
)
"""Those of Qwen3.5 and Qwen3-Next (vLLM, `qwen3_5_mtp.py`)."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: of `count` experts the `per_token` with the highest router scores compute a row."""

    count: int
    per_token: int
    ffn: int
    normalize: bool
    """The weights of the chosen experts sum to one; otherwise the weights of all experts do."""
    shared_ffn: int = 0
    """Width of the shared expert, an MLP that computes every row and is added; 0 is none."""
    shared_gate: bool = False
    """The shared expert's rows are multiplied by the sigmoid of a projection of the row."""
    router: ExpertRouter = ExpertRouter()
    biases: bool = False
    """The router and both matrices of each expert have biases."""
    gated: bool = True
    """Experts are act(gate) * up, as the MLP is; otherwise they are act(up)."""
    latent: int = 0
    """Width of the latents that chosen experts compute, which rows are projected to, and the weighted sum back from; 0:
    they compute the rows themselves. Router and shared expert always read the rows."""

    @property
    def halves(self) -> int:
        """Matrices that are one behind the other in the first one of an expert: a gate and its other half, or one."""
        return 2 if self.gated else 1

    def width(self, hidden: int) -> int:
        """Return the width of the rows that experts compute, in a model of this width."""
        return self.latent or hidden


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
    mlp: bool = True
    """It has an MLP, or a mixture of experts, behind its mixer if it has one."""
    keys_as_values: bool = False
    """Values are the keys before their norm and rotation: there is no projection of values."""
    ffn_multiple: int = 1
    """The width of the MLP, in those of `ModelConfig.ffn`."""

    @property
    def recurrent(self) -> bool:
        """The layer has a recurrent state."""
        return self.kind not in ("attention", "none")


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
    pad: int = 0
    """The token whose embeddings a row of an image has."""


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


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A selective state space model (https://arxiv.org/abs/2405.21060): a causal convolution of inputs, B and C, and a
    matrix for each head, which decays and takes in each row's input, by a step that depends on the row."""

    heads: int
    head_dim: int
    groups: int
    """A divisor of `heads`: consecutive heads share B and C, and a norm."""
    state: int
    """Values of the state for each lane of a head: those of B and of C."""
    taps: int
    """As in `ShortConvolution`."""
    conv_bias: bool = True
    """The convolution has a bias."""
    step_limit: tuple[float, float] = (0.0, math.inf)
    """The least and the largest step."""

    @property
    def inner(self) -> int:
        """Lanes of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: inputs, B and C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Values that a row is projected to: gates, the channels, and the steps of the heads."""
        return self.inner + self.channels + self.heads

    @property
    def state_values(self) -> int:
        """Values of the state of one slot in one layer: the convolution's [taps - 1, channels], and the matrices
        [heads, state, head_dim]."""
        return (self.taps - 1) * self.channels + self.inner * self.state


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (https://arxiv.org/abs/2405.04434): the cache has one latent for each row, from which
    keys and values of all heads are projected, and lanes with the position, which heads share.

    The runners attend to latents: the queries of a head are multiplied by the matrix of its keys, and what they gather
    by that of its values. So there is one KV head, whose keys are the lanes with the position and the latent, and whose
    values are the latent.
    """

    rank: int
    """Lanes of a latent."""
    rotated: int
    """Lanes of a query with the position, and of a key."""
    passed: int
    """Lanes of a query without the position."""
    values: int
    """Lanes of a head's values."""
    query_rank: int | None = None
    """Lanes of the latent that queries are projected from; None: they are projected from the rows."""
    eps: float = 1e-6
    """Epsilon of the norms of both latents."""
    apart: bool = False
    """The checkpoint has the matrices of all heads' keys, transposed, and those of their values as two tensors, one
    below the other, in place of `kv_b_proj`: GGUF, and mlx-lm's `embed_q` and `unembed_out`."""

    @property
    def query(self) -> int:
        """Lanes of a head's query before it is multiplied."""
        return self.passed + self.rotated

    @property
    def keys(self) -> int:
        """Lanes of a key in the cache, and of a query that attends to it: those with the position first."""
        return self.rotated + self.rank


def full_layers(plan: Sequence[LayerConfig]) -> tuple[int, ...]:
    """Return the layers with attention and without a window: they attend to all rows before their own."""
    return tuple(number for number, layer in enumerate(plan) if layer.kind == "attention" and layer.window is None)
