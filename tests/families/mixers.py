"""Tensors of attention, of what stands in its place, and of whole layers that only one family has."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from tests.families.mlps import mixtral_experts
from tests.families.weights import NamedTensors, RandomWeights
from tests.reference.layers import mamba_layers


def attention(
    config: Mapping[str, Any],
    weights: RandomWeights,
    *,
    qkv_bias: bool = False,
    head_norm: Literal["each", "all"] | None = None,
) -> NamedTensors:
    """Llama's attention, with a bias of queries, keys and values, or with norms of heads: see `Traits`."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    for name, size, gain in (("q", queries, 2.0), ("k", keys, 2.0), ("v", keys, 1.0)):
        yield f"self_attn.{name}_proj.weight", weights.matrix(size, hidden, gain)
    yield "self_attn.o_proj.weight", weights.matrix(hidden, queries, 1.0)
    biased = "qkv" if qkv_bias else "qkvo" if config.get("attention_bias") else ""
    for name in biased:
        yield f"self_attn.{name}_proj.bias", weights.bias({"q": queries, "k": keys, "v": keys, "o": hidden}[name])
    if head_norm is not None:
        for name, size in (("q", queries), ("k", keys)):
            yield f"self_attn.{name}_norm.weight", weights.norm(size if head_norm == "all" else head_dim, 2.0)


def granite_mixer(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """Granite 4: Mamba-2 or Llama's attention."""
    if config["layer_types"][layer] == "attention":
        return attention(config, weights)
    return mamba_layers.granite_mamba(config, weights)


def lfm2_mixer(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """A gated short convolution, or attention under LFM2's names."""
    hidden, taps = config["hidden_size"], config["conv_L_cache"]
    if config["layer_types"][layer] == "full_attention":
        names = {"o_proj": "out_proj", "q_norm": "q_layernorm", "k_norm": "k_layernorm"}
        for name, tensor in attention(config, weights, head_norm="each"):
            block, part, kind = name.split(".")
            yield f"{block}.{names.get(part, part)}.{kind}", tensor
        return
    yield "conv.in_proj.weight", weights.matrix(3 * hidden, hidden, 1.0)
    yield "conv.conv.weight", weights.matrix(hidden, taps, 1.5)[:, None]
    yield "conv.out_proj.weight", weights.matrix(hidden, hidden, 1.0)


def qwen3_5_mixer(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """A gated delta network, or attention with a gate behind the queries of each head."""
    hidden, heads, head_dim = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    if config["layer_types"][layer] == "full_attention":
        for name, tensor in attention(config, weights, head_norm="each"):
            if name == "self_attn.q_proj.weight":
                queries = tensor.reshape(heads, head_dim, hidden)
                gates = weights.matrix(heads * head_dim, hidden, 2.0).reshape(queries.shape)
                tensor = np.concatenate([queries, gates], axis=1).reshape(-1, hidden)
            yield name, tensor
        return
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    count, lanes = config["linear_num_value_heads"], config["linear_value_head_dim"]
    for name, size in (("qkv", 2 * keys + count * lanes), ("z", count * lanes), ("b", count), ("a", count)):
        yield f"linear_attn.in_proj_{name}.weight", weights.matrix(size, hidden, 2.0)
    taps = weights.matrix(2 * keys + count * lanes, config["linear_conv_kernel_dim"], 2.0)
    yield "linear_attn.conv1d.weight", taps[:, None]
    yield "linear_attn.A_log", np.log(weights.rng.uniform(0.05, 4.0, count)).astype(np.float32)
    yield "linear_attn.dt_bias", weights.bias(count)
    yield "linear_attn.norm.weight", 1.0 + weights.bias(lanes)  # never centred
    yield "linear_attn.out_proj.weight", weights.matrix(hidden, count * lanes, 1.0)


def qwen3_next_mixer(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """Qwen 3.5's, with the projections of a key head and its value heads behind those of the one before."""
    parts = dict(qwen3_5_mixer(config, layer, weights))
    if "linear_attn.A_log" not in parts:
        yield from parts.items()
        return
    hidden, heads = config["hidden_size"], config["linear_num_key_heads"]
    keys = heads * config["linear_key_head_dim"]
    qkv, z, b, a = (parts.pop(f"linear_attn.in_proj_{name}.weight") for name in ("qkv", "z", "b", "a"))
    fused = [each.reshape(heads, -1, hidden) for each in (*np.split(qkv, [keys, 2 * keys]), z)]
    gates = [each.reshape(heads, -1, hidden) for each in (b, a)]
    yield "linear_attn.in_proj_qkvz.weight", np.concatenate(fused, axis=1).reshape(-1, hidden)
    yield "linear_attn.in_proj_ba.weight", np.concatenate(gates, axis=1).reshape(-1, hidden)
    yield from parts.items()


def phi_layer(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """Attention and experts of Mixtral's names, behind norms with biases."""
    yield from attention(config, weights)
    yield from mixtral_experts(config, layer, weights)
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.weight", weights.norm(config["hidden_size"])
        yield f"{name}.bias", weights.bias(config["hidden_size"])


def gpt_oss_layer(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """Attention with sinks, and experts in stacks [inputs, outputs], whose gates and ups alternate."""
    count, ffn, hidden = config["num_local_experts"], config["intermediate_size"], config["hidden_size"]
    yield from attention(config, weights)
    yield "self_attn.sinks", weights.bias(config["num_attention_heads"]) * 10
    yield "mlp.router.weight", weights.matrix(count, hidden, 2.0)
    yield "mlp.router.bias", weights.bias(count)
    for name, outputs, inputs, gain in (("gate_up_proj", 2 * ffn, hidden, 3.0), ("down_proj", hidden, ffn, 1.0)):
        yield f"mlp.experts.{name}", np.stack([weights.matrix(outputs, inputs, gain).T for _ in range(count)])
        yield f"mlp.experts.{name}_bias", np.stack([weights.bias(outputs) for _ in range(count)])
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.weight", weights.norm(hidden)
