"""The words in which a family is described: where norms stand, what tensors are called, what one layer is."""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]
HeadNorm = Literal["each", "all"]
"""Queries and keys are normed by the RMS of each head, or of all heads together."""


@dataclass(frozen=True, slots=True)
class Norms:
    """A layer's norms by where they stand, with the names of their tensors; None where there is none."""

    before_attention: str | None = None
    after_attention: str | None = None
    """Of what attention adds, before it is added."""
    before_mlp: str | None = None
    after_mlp: str | None = None


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Tensors of a mixture of experts; `{}` is the expert's number."""

    router: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class Names:
    """What a layer's matrices are called; several are stacked along their outputs."""

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    experts: ExpertNames = ExpertNames(
        "mlp.gate", "mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj", "mlp.experts.{}.down_proj"
    )


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: every row is computed by the `per_token` experts of `count` that its router likes best."""

    count: int
    per_token: int
    ffn: int
    normalize: bool
    """Whether the weights of the chosen experts sum to one; otherwise those of all experts do."""


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What may differ between the layers of a model."""

    window: int | None = None
    """A position sees at most this many positions, itself included; None sees all before it."""
    rope: int | None = 0
    """Which of the model's rotations; None has no positions."""
    experts: bool = False
    """A mixture of experts in place of the MLP."""
