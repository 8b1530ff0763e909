"""Parts of an architecture: norms, names of tensors, experts, and what differs between layers."""

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
    derived: tuple[str, ...] = ("self_attn.rotary_emb.inv_freq",)
    """Tensors of layers in old checkpoints that are not read: they follow from config.json."""
    embedding: str = "model.embed_tokens"
    layers: str = "model.layers."
    """Prefix of the names of a layer's tensors, before its number."""
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


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """The configuration of one layer: what may differ between the layers of a model."""

    window: int | None = None
    """The attention window in positions, the query's own included; None is no window."""
    rope: int | None = 0
    """The index of the rotary embedding in `ModelConfig.ropes`; None is no positions."""
    experts: bool = False
    """A mixture of experts replaces the MLP."""
