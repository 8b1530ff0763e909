"""Parts of an architecture: norms, names of tensors, experts, and what differs between layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]
HeadNorm = Literal["each", "all"]
"""RMS norm of queries and keys: of each head, or of all heads together."""


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


def full_layers(plan: Sequence[LayerConfig]) -> tuple[int, ...]:
    """Return the layers without a window: they attend to all rows before their own."""
    return tuple(number for number, layer in enumerate(plan) if layer.window is None)
