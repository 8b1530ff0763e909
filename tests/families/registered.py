"""All families by name, and random checkpoints of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.families.dense_families import DENSE_FAMILIES
from tests.families.hybrid_families import HYBRID_FAMILIES
from tests.families.mixers import attention
from tests.families.plain_families import PLAIN_FAMILIES
from tests.families.traits import Traits
from tests.families.weights import NamedTensors, RandomWeights, Tensors

FAMILIES: Mapping[str, Traits] = {**PLAIN_FAMILIES, **DENSE_FAMILIES, **HYBRID_FAMILIES}
"""By config.json's `model_type`."""
MIXTURES = (
    *("qwen2_moe", "olmoe", "granitemoe", "granitemoeshared", "qwen3_5_moe_text", "qwen3_next"),
    *("glm4_moe", "ernie4_5_moe", "phimoe", "lfm2_moe"),
)
"""The families with a mixture of experts whose kernels other families have."""
LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3")
"""The families with latent attention."""
DENSE = tuple(DENSE_FAMILIES)
"""The families that `dense_layers` is for, and others with their parts."""
ARCHITECTURES: Mapping[str, str] = {name: traits.architecture for name, traits in FAMILIES.items()}


def family_fields(family: str, layers: int, *, attention_bias: bool) -> dict[str, Any]:
    """Fields of config.json beside those that all families have."""
    traits = FAMILIES[family]
    bias = {"attention_bias": attention_bias} if traits.optional_bias else {}
    return bias | dict(traits.fields(layers))


def random_weights(config: Mapping[str, Any], live: int, rng: np.random.Generator) -> Tensors:
    """Make random weights for a config.json. Tokens from `live` on get zeros, so they are never the most likely."""
    traits, hidden, vocab = FAMILIES[config["model_type"]], config["hidden_size"], config["vocab_size"]
    weights = RandomWeights(rng, centred=traits.centred_norms)
    mask = np.arange(vocab)[:, None] < live
    embedding, layers, norm, head = traits.names
    tensors: Tensors = {f"{embedding}.weight": weights.matrix(vocab, hidden, 0.5) * mask}
    if not config["tie_word_embeddings"]:
        tensors[f"{head}.weight"] = weights.matrix(vocab, hidden, 2.0) * mask
    for layer in range(config["num_hidden_layers"]):
        tensors |= {f"{layers}{layer}.{name}": tensor for name, tensor in _layer(traits, config, layer, weights)}
    if traits.beside is not None:
        tensors |= dict(traits.beside(config, weights))
    if traits.norm_weight:
        tensors[f"{norm}.weight"] = weights.norm(hidden)
    if traits.norm_bias:
        tensors[f"{norm}.bias"] = weights.bias(hidden)
    if traits.head_bias:
        tensors[f"{head}.bias"] = np.where(mask[:, 0], weights.bias(vocab), np.float32(-9))
    if traits.extra_layer and config["num_nextn_predict_layers"]:
        tensors[f"{layers}{config['num_hidden_layers']}.eh_proj.weight"] = weights.matrix(hidden, 2 * hidden, 1.0)
    if config.get("mtp_num_hidden_layers"):
        tensors |= _qwen_mtp(traits, config, weights)
    for layer in range(config["num_nextn_predict_layers"] if traits.mtp else 0):
        parts = _mtp_layer(traits, config, layer, weights)
        tensors |= {f"model.mtp_layers.{layer}.{name}": tensor for name, tensor in parts}
    return tensors


def _mtp_layer(traits: Traits, config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """A layer behind a projection of a hidden state and an embedding, side by side, each with a norm."""
    hidden = config["hidden_size"]
    yield from _layer(traits, config, layer, weights)
    yield "input_proj.weight", weights.matrix(hidden, 2 * hidden, 1.0)
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        yield f"{name}.weight", weights.norm(hidden)


def _qwen_mtp(traits: Traits, config: Mapping[str, Any], weights: RandomWeights) -> Tensors:
    """The head of Qwen3.5 and Qwen3-Next: like MiMo's, under other names, with a layer of the model that attends."""
    hidden, attends = config["hidden_size"], {**config, "layer_types": ["full_attention"]}
    tensors = {f"mtp.layers.0.{name}": tensor for name, tensor in _layer(traits, attends, 0, weights)}
    tensors["mtp.fc.weight"] = weights.matrix(hidden, 2 * hidden, 1.0)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        tensors[f"mtp.{name}.weight"] = weights.norm(hidden)
    return tensors


def _layer(traits: Traits, config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    if traits.layer is not None:
        yield from traits.layer(config, layer, weights)
        return
    mixer = _mixer(traits, config, layer, weights)
    parts = [*mixer, *traits.mlp(config, layer, weights)]
    if traits.fused:
        parts = list(_fused(dict(parts)))
    yield from parts
    yield from ((f"{name}.weight", weights.norm(config["hidden_size"])) for name in traits.norms)


def _mixer(traits: Traits, config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    if traits.mixer is not None:
        return traits.mixer(config, layer, weights)
    return attention(config, weights, qkv_bias=traits.qkv_bias, head_norm=traits.head_norm)


def _fused(parts: Tensors) -> NamedTensors:
    """Stack the projections of a layer."""
    qkv = [parts.pop(f"self_attn.{name}_proj.weight") for name in "qkv"]
    gate_up = [parts.pop(f"mlp.{name}_proj.weight") for name in ("gate", "up")]
    yield "self_attn.qkv_proj.weight", np.concatenate(qkv)
    yield "mlp.gate_up_proj.weight", np.concatenate(gate_up)
    yield from parts.items()
