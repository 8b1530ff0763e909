"""The description of an architecture of GGUF files, and the names that several of them have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.gguf.keys import Keys
from workers.checkpoints.gguf.layouts.orders import StoredOrder

ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
BEFORE = {"ffn_norm": "post_attention_layernorm"}
AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
AROUND = AFTER | {"ffn_norm": "pre_feedforward_layernorm"}
LLAMA = ATTENTION | MLP | BEFORE

Fields = dict[str, Any]


def _no_orders(keys: Keys) -> Mapping[str, StoredOrder]:
    return {}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One value of `general.architecture`."""

    family: str
    """The family by `model_type` of config.json."""
    names: Mapping[str, str] = field(default_factory=lambda: LLAMA)
    """Hugging Face's names of a layer's modules, or of a tensor where the key has its `.weight` or `.bias`. `{}` stands
    for the number of an expert or of a head, of which the file has a stack."""
    paired: bool = False
    """Rows of queries and keys are in pairs of lanes that are rotated together, not in two halves."""
    read: Callable[[Keys, Fields], None] = lambda keys, fields: None
    """Adds the fields that other architectures do not have."""
    theta: float = 10000.0
    """RoPE base of files that state none."""
    orders: Callable[[Keys], Mapping[str, StoredOrder]] = _no_orders
    """The orders of the rows and columns of modules that are not stored in Hugging Face's."""
    split: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Modules that hold several of Hugging Face's, whose rows have an order each, by their names there."""
    values: Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = field(default_factory=dict)
    """Functions from the stored values of tensors to Hugging Face's."""
    uncentred: frozenset[str] = frozenset()
    """Norms without the offset that those of the family have."""
    precise: frozenset[str] = frozenset({"ffn_gate_inp", "ffn_gate_inp_shexp"})
    """Modules that are never quantized, such as routers: an error in one chooses other experts."""
    flat: frozenset[str] = frozenset()
    """Vectors that are matrices in the file."""
    outside: Mapping[str, str] = field(default_factory=dict)
    """Hugging Face's names of modules outside of layers that other architectures do not have."""
    listed: frozenset[str] = frozenset()
    """Keys with a number for each layer that may differ, which `read` reads; others have one number, or 0."""
    merged: frozenset[str] = frozenset()
    """Stacks of matrices that are one below the other in Hugging Face's checkpoints."""
    latent: bool = False
    """Rotated lanes are apart from the others: `rope.dimension_count` of them, and not a part of the head's."""
    taps: frozenset[str] = frozenset()
    """Convolutions, [channels, taps] in the file and [channels, 1, taps] in Hugging Face's checkpoints."""


def set_family(fields: Fields, family: str) -> None:
    """Make the fields those of another family."""
    fields.update(model_type=family, architectures=[FAMILIES[family].architecture])


def read_window(keys: Keys, fields: Fields) -> None:
    """Read a window that may be 0 for none."""
    fields["sliding_window"] = (
        keys.integer("attention.sliding_window") if keys.get("attention.sliding_window") else None
    )


def layer_types(keys: Keys, pattern: list[Any]) -> list[str]:
    """Return the kinds of layers by whether each has a window."""
    if not all(isinstance(windowed, bool) for windowed in pattern):
        raise keys.error("attention.sliding_window_pattern", "is neither a period nor a list of true and false")
    return ["sliding_attention" if windowed else "full_attention" for windowed in pattern]


def read_experts(keys: Keys, fields: Fields) -> None:
    fields["num_local_experts"] = keys.integer("expert_count")
    fields["num_experts_per_tok"] = keys.integer("expert_used_count")


def read_vision_language(keys: Keys, fields: Fields) -> None:
    """The language models of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: a text has the same position in all sections, and adds
    no rows of a deep stack."""
    for name in ("rope.dimension_sections", "n_deepstack_layers"):
        keys.get(name)


def read_multipliers(keys: Keys, fields: Fields) -> None:
    """Read the multipliers of Granite."""
    for key, name in (
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ):
        value = keys.optional_number(key)
        if value is not None:
            fields[name] = value
    fields.setdefault("attention_multiplier", fields["head_dim"] ** -0.5)


def has_tensor(keys: Keys, name: str) -> bool:
    """Return whether the first layer has a tensor."""
    return f"blk.0.{name}" in keys.model.tensors
