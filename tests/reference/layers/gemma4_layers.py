"""Tensors of Gemma 4's checkpoints, from transformers' `models/gemma4/modeling_gemma4.py`."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tests.families import RandomWeights

NamedTensors = Iterator[tuple[str, NDArray[Any]]]
DENSE = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "attention_k_eq_v": True}
"""As in the models of 12B and 31B."""
EXPERTS = DENSE | {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 48}
"""As in the one of 26B."""
ALL = EXPERTS | {"hidden_size_per_layer_input": 24, "num_kv_shared_layers": 2}
"""Everything at once, and a width of embeddings that is padded on a CPU."""
SAME_WIDTH = {"global_head_dim": 16, "num_global_key_value_heads": 2}
"""Layers whose keys and values have the same shape, for heads of 16 lanes."""


def fields(layers: int) -> Mapping[str, Any]:
    """As in the small models: the last half of the layers has no keys and values of its own, with two kinds of layers
    in both halves."""
    shared = layers // 2 if layers > 2 else 0
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": 24,
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000.0},
        },
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": False,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 512,
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": True,
        "final_logit_softcapping": 6.0,
        "enable_moe_block": False,
    }


def layer(config: Mapping[str, Any], number: int, weights: "RandomWeights") -> NamedTensors:
    hidden, first_shared = config["hidden_size"], config["num_hidden_layers"] - config["num_kv_shared_layers"]
    yield from _attention(config, number, weights, shared=number >= first_shared)
    wide = 2 if config["use_double_wide_mlp"] and number >= first_shared else 1
    ffn = wide * config["intermediate_size"]
    yield "mlp.gate_proj.weight", weights.matrix(ffn, hidden, 1.0)
    yield "mlp.up_proj.weight", weights.matrix(ffn, hidden, 1.0)
    yield "mlp.down_proj.weight", weights.matrix(hidden, ffn, 2.0)
    for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        yield f"{name}_layernorm.weight", weights.norm(hidden)
    yield "layer_scalar", 0.8 + 0.1 * np.abs(weights.bias(1))
    if config["enable_moe_block"]:
        yield from _experts(config, weights)
    if own := config["hidden_size_per_layer_input"]:
        yield "per_layer_input_gate.weight", weights.matrix(own, hidden, 2.0)
        yield "per_layer_projection.weight", weights.matrix(hidden, own, 1.0)
        yield "post_per_layer_input_norm.weight", weights.norm(hidden)


def _attention(config: Mapping[str, Any], number: int, weights: "RandomWeights", *, shared: bool) -> NamedTensors:
    hidden, heads, keys = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    full, lanes = config["layer_types"][number] == "full_attention", config["head_dim"]
    shares = config["attention_k_eq_v"] and full
    if full:
        lanes = config["global_head_dim"]
        keys = config["num_global_key_value_heads"] if shares else keys
    yield "self_attn.q_proj.weight", weights.matrix(heads * lanes, hidden, 1.0)
    yield "self_attn.q_norm.weight", weights.norm(lanes, 0.7)
    if not shared:
        yield "self_attn.k_proj.weight", weights.matrix(keys * lanes, hidden, 1.0)
        yield "self_attn.k_norm.weight", weights.norm(lanes, 0.7)
        if not shares:
            yield "self_attn.v_proj.weight", weights.matrix(keys * lanes, hidden, 1.0)
    yield "self_attn.o_proj.weight", weights.matrix(hidden, heads * lanes, 1.0)


def _experts(config: Mapping[str, Any], weights: "RandomWeights") -> NamedTensors:
    hidden, count, ffn = config["hidden_size"], config["num_experts"], config["moe_intermediate_size"]
    yield "router.proj.weight", weights.matrix(count, hidden, 2.0)
    yield "router.scale", weights.norm(hidden, hidden**0.5)
    yield "router.per_expert_scale", weights.norm(count)
    for name, rows, columns, gain in (("gate_up_proj", 2 * ffn, hidden, 1.0), ("down_proj", hidden, ffn, 2.0)):
        yield f"experts.{name}", np.stack([weights.matrix(rows, columns, gain) for _ in range(count)])
    for name in ("post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"):
        yield f"{name}.weight", weights.norm(hidden)


def beside_layers(config: Mapping[str, Any], weights: "RandomWeights") -> NamedTensors:
    own, layers = config["hidden_size_per_layer_input"], config["num_hidden_layers"]
    if own:
        table = weights.matrix(config["vocab_size_per_layer_input"], layers * own, 1.0) * (layers * own / own) ** 0.5
        yield "model.embed_tokens_per_layer.weight", table.astype(np.float32)
        yield "model.per_layer_model_projection.weight", weights.matrix(layers * own, config["hidden_size"], 2.0)
        yield "model.per_layer_projection_norm.weight", weights.norm(own)
