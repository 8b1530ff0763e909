"""Reads the fields of config.json that hold for all layers: sizes, factors, types and flags."""

import math
from typing import Any

from workers.checkpoints.architectures.family import ACTIVATIONS, Family
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.checkpoints.architectures.parts import Activation, LatentAttention
from workers.checkpoints.architectures.rope import Llama3, LongRope, Rope, Yarn
from workers.checkpoints.architectures.rope_fields import attention_sharpness
from workers.precision import WeightDtype


def read_heads(fields: Fields, hidden: int, family: Family, latent: LatentAttention | None) -> tuple[int, int, int]:
    """Read the numbers of query heads and of KV heads, and the lanes of a head."""
    heads = fields.integer("num_attention_heads")
    if latent is not None:
        if fields.integer("num_key_value_heads", heads) != heads:
            raise fields.error(
                "num_key_value_heads", f"is not num_attention_heads, {heads}, of which each has a matrix"
            )
        return heads, 1, latent.keys
    kv_heads = family.kv_heads or fields.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads, {heads}")
    head_dim = fields.integer("head_dim", max(1, hidden // heads))
    if head_dim % 2:
        raise fields.error("head_dim", f"{head_dim} is odd; rotary positions need pairs")
    return heads, kv_heads, head_dim


def read_ffn(fields: Fields, family: Family, hidden: int) -> int:
    """Read the width of the MLP."""
    if family.read_ffn is not None:
        return family.read_ffn(fields)
    return fields.integer("intermediate_size", family.ffn_factor and family.ffn_factor * hidden)


def read_attention_biases(fields: Fields, family: Family) -> tuple[bool, bool]:
    """Read whether queries, keys and values have biases, and whether the output has."""
    flag = fields.flag("attention_bias", False) if family.biases is None else family.biases
    if family.output_bias is not None:
        return flag, family.output_bias
    return flag, family.biases is None and flag


def read_activation(fields: Fields, family: Family) -> Activation:
    """Read the activation, which must be the family's: no other is what its models were trained with, or tested."""
    for name in ("hidden_act", "hidden_activation"):
        value = fields.get(name, family.activation)
        if value == family.activation_alias:
            continue
        if family.any_activation and isinstance(value, str) and value in ACTIVATIONS:
            return ACTIVATIONS[value]
        if not isinstance(value, str) or ACTIVATIONS.get(value) != ACTIVATIONS[family.activation]:
            raise fields.error(name, f"{value!r} is not supported, only {family.activation!r}")
    return ACTIVATIONS[family.activation]


def read_attention_scale(fields: Fields, family: Family, head_dim: int, latent: LatentAttention | None) -> float:
    """Read the factor of the products of queries and keys."""
    if latent is not None:
        plain: float = latent.query**-0.5
        return plain * attention_sharpness(fields) ** 2
    if "attention_multiplier" in family.reads:
        return fields.number("attention_multiplier")
    scale: float = fields.number("query_pre_attn_scalar", head_dim) ** -0.5
    return scale


def read_residual_multiplier(fields: Fields, family: Family, layers: int) -> float:
    """Read the factor of what layers add, which MiniCPM states for all layers together."""
    if "scale_depth" in family.reads:
        depth: float = fields.number("scale_depth")
        return depth / math.sqrt(layers)
    return _multiplier(fields, family, "residual_multiplier")


def read_logits_scaling(fields: Fields, family: Family, hidden: int) -> float:
    """Read the divisor of logits, which Cohere states as a factor, and MiniCPM by a width."""
    if "dim_model_base" in family.reads:
        return hidden / fields.integer("dim_model_base", hidden)
    if "logit_scale" in family.reads:
        return 1 / fields.number("logit_scale")
    return _multiplier(fields, family, "logits_scaling")


def read_embedding_scale(fields: Fields, family: Family, hidden: int) -> float:
    """Read the factor of embeddings, which Gemma's families derive from the hidden size."""
    return hidden**0.5 if family.scaled_embedding else _multiplier(fields, family, "embedding_multiplier")


def _multiplier(fields: Fields, family: Family, name: str) -> float:
    """Read a multiplier of a family that has it; it is 1 for every other family."""
    return fields.number(name, 1.0) if name in family.reads else 1.0


def read_mtp_layers(fields: Fields, family: Family) -> int:
    """Read the number of heads for multi-token prediction, which may be 0."""
    if family.mtp is None or fields.get(family.mtp.field, 0) == 0:
        return 0
    layers: int = fields.integer(family.mtp.field, most=MAX_PARTS)
    return layers


def read_max_positions(fields: Fields, family: Family, ropes: tuple[Rope, ...]) -> int:
    """Read the positions of the model. YaRN multiplies those that it was trained on, whatever `max_position_embeddings`
    is."""
    stated = fields.integer("max_position_embeddings", 2048)
    if family.grows_queries:
        scalings = [rope.scaling for rope in ropes]
        return min([stated, *(each.original for each in scalings if isinstance(each, Yarn | Llama3 | LongRope))])
    reached = [int(rope.scaling.factor * rope.scaling.original) for rope in ropes if isinstance(rope.scaling, Yarn)]
    return max(stated, *reached) if reached else stated


def read_dtype(fields: Fields) -> WeightDtype:
    """Read the type of the weights, under its name of transformers 5 or the earlier one."""
    name: Any = fields.get("dtype") or fields.get("torch_dtype") or "float32"
    if name not in ("float32", "float16", "bfloat16"):
        raise fields.error("dtype", f"{name!r} is not supported, only float32, float16 and bfloat16")
    dtype: WeightDtype = name
    return dtype
