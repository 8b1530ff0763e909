"""Parts of mlx-lm's Gemma 4 without `mx.compile`, and the fields from which it is made."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import switch_layers

from workers.checkpoints.checkpoint import ModelConfig
from workers.mlx.modules.parts import WidenedExperts
from workers.mlx.modules.ungated import gelu_tanh


def plain_geglu(gate: mx.array, x: mx.array) -> mx.array:
    """mlx-lm's `geglu` without `mx.compile`."""
    return gelu_tanh(gate) * x


class PlainNn:
    """`mlx.nn` whose approximate GELU is not compiled."""

    def __getattr__(self, name: str) -> Any:
        return getattr(nn, name)

    @staticmethod
    def gelu_approx(x: mx.array) -> mx.array:
        return gelu_tanh(x)


class GeluExperts(switch_layers.SwitchGLU):  # type: ignore[misc]
    """mlx-lm's `SwitchGLU` with the activation that it is given, for a CPU."""

    def __init__(
        self, *, input_dims: int, hidden_dims: int, num_experts: int, activation: nn.Module, bias: bool
    ) -> None:
        super().__init__(input_dims, hidden_dims, num_experts, activation=activation, bias=bias)
        self.gate_proj = WidenedExperts(input_dims, hidden_dims, num_experts, bias=bias)
        self.up_proj = WidenedExperts(input_dims, hidden_dims, num_experts, bias=bias)
        self.down_proj = WidenedExperts(hidden_dims, input_dims, num_experts, bias=bias)


def gemma4_fields(config: ModelConfig) -> dict[str, Any]:
    """Return the fields of mlx-lm's Gemma 4 that other models do not have; its defaults are those of one model."""
    own, experts, full = config.per_layer, config.experts, config.kv_shape(config.layers - 1)
    return {
        "global_head_dim": full.key_width,
        "num_global_key_value_heads": full.heads,
        "attention_k_eq_v": any(layer.keys_as_values for layer in config.plan),
        "num_kv_shared_layers": sum(layer.kv_source is not None for layer in config.plan),
        "use_double_wide_mlp": any(layer.ffn_multiple > 1 for layer in config.plan),
        "hidden_size_per_layer_input": 0 if own is None else own.width,
        "vocab_size_per_layer_input": config.vocab_size if own is None else own.vocab,
        "enable_moe_block": config.experts_beside_mlp,
        "top_k_experts": None if experts is None else experts.per_token,
    }
