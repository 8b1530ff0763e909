"""Random tensors of layers with Mamba-2, written from transformers' Granite 4 and Nemotron-H."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.reference.layers.dense_layers import NamedTensors, RandomWeights


def granite_fields(layers: int) -> dict[str, Any]:
    """Two heads of 16 lanes share B and C; every other layer attends, without positions."""
    return {
        "layer_types": ["attention" if layer % 2 else "mamba" for layer in range(layers)],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 96,
        "position_embedding_type": "nope",
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_n_groups": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    }


def nemotron_fields(layers: int) -> dict[str, Any]:
    """Three layers are of three kinds."""
    return {
        "hybrid_override_pattern": ("M*-" * layers)[:layers],
        "layer_norm_epsilon": 2e-5,
        "tie_word_embeddings": False,
        "mlp_hidden_act": "relu2",
        "mlp_bias": False,
        "use_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "n_groups": 2,
        "ssm_state_size": 32,
        "conv_kernel": 4,
        "use_conv_bias": True,
        "mamba_proj_bias": False,
        # transformers takes it for the least step, which time_step_limit states.
        "time_step_min": 1e-9,
    }


NEMOTRON_EXPERTS: dict[str, Any] = {
    "hybrid_override_pattern": "M*E-",
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 32,
    "n_group": 3,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
"""Fields of Nemotron-H with a layer of experts, for four layers. The shared expert is narrower than an expert."""
NEMOTRON_LATENTS = NEMOTRON_EXPERTS | {"moe_latent_size": 40}
"""Experts of latents, no whole vectors."""


def granite_mamba(config: Mapping[str, Any], weights: RandomWeights) -> NamedTensors:
    heads, state = config["mamba_n_heads"], config["mamba_d_state"]
    sizes = (heads, config["mamba_d_head"], config["mamba_n_groups"], state, config["mamba_d_conv"])
    return _mamba("mamba", sizes, config["mamba_conv_bias"], config["hidden_size"], weights)


def nemotron_layer(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """A norm, and Mamba-2, attention or an MLP without a gate."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    yield "norm.weight", weights.norm(hidden)
    match config["hybrid_override_pattern"][layer]:
        case "M":
            heads, state = config["mamba_num_heads"], config["ssm_state_size"]
            sizes = (heads, config["mamba_head_dim"], config["n_groups"], state, config["conv_kernel"])
            yield from _mamba("mixer", sizes, config["use_conv_bias"], hidden, weights)
        case "*":
            queries, keys = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
            for name, size, gain in (("q", queries, 2.0), ("k", keys, 2.0), ("v", keys, 1.0)):
                yield f"mixer.{name}_proj.weight", weights.matrix(size, hidden, gain)
            yield "mixer.o_proj.weight", weights.matrix(hidden, queries, 1.0)
        case "E":
            yield from _nemotron_experts(config, weights)
        case _:
            yield from _relu2("mixer", (ffn, hidden), weights)


def _relu2(name: str, sizes: tuple[int, int], weights: RandomWeights) -> NamedTensors:
    """An MLP without a gate: `sizes` are its width, and that of rows."""
    yield f"{name}.up_proj.weight", weights.matrix(*sizes, 1.5)
    yield f"{name}.down_proj.weight", weights.matrix(*sizes[::-1], 1.0)


def _nemotron_experts(config: Mapping[str, Any], weights: RandomWeights) -> NamedTensors:
    """Experts and a shared one without a gate, also of latents, behind a router with a bias."""
    hidden, count, latent = config["hidden_size"], config["n_routed_experts"], config.get("moe_latent_size")
    yield "mixer.gate.weight", weights.matrix(count, hidden, 2.0)
    yield "mixer.gate.e_score_correction_bias", weights.bias(count)
    for expert in range(count):
        yield from _relu2(f"mixer.experts.{expert}", (config["moe_intermediate_size"], latent or hidden), weights)
    yield from _relu2("mixer.shared_experts", (config["moe_shared_expert_intermediate_size"], hidden), weights)
    if latent:
        yield "mixer.fc1_latent_proj.weight", weights.matrix(latent, hidden, 1.5)
        yield "mixer.fc2_latent_proj.weight", weights.matrix(hidden, latent, 1.5)


def _mamba(
    name: str, sizes: tuple[int, int, int, int, int], conv_bias: bool, hidden: int, weights: RandomWeights
) -> NamedTensors:
    """`sizes` are heads, their lanes, groups, the state's values of a lane, and taps."""
    heads, lanes, groups, state, taps = sizes
    inner, channels = heads * lanes, heads * lanes + 2 * groups * state
    yield f"{name}.in_proj.weight", weights.matrix(inner + channels + heads, hidden, 2.0)
    yield f"{name}.conv1d.weight", weights.matrix(channels, taps, 2.0)[:, None]
    if conv_bias:
        yield f"{name}.conv1d.bias", weights.bias(channels)
    yield f"{name}.A_log", np.log(weights.rng.uniform(0.05, 4.0, heads)).astype(np.float32)
    yield f"{name}.dt_bias", weights.bias(heads)
    yield f"{name}.D", 1.0 + weights.bias(heads)
    yield f"{name}.norm.weight", 1.0 + weights.bias(inner)
    yield f"{name}.out_proj.weight", weights.matrix(hidden, inner, 1.0)
