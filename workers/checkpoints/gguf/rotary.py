"""Rotary positions of GGUF files as the fields of config.json that mean the same."""

import math
from typing import Any

import numpy as np

from workers.checkpoints.gguf.keys import Keys

FREQUENCIES, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
"""Tensors with a divisor for each rotated pair of lanes."""
FACTORS = frozenset({FREQUENCIES, LONG, SHORT})
LINEAR, YARN, LONGROPE = "linear", "yarn", "longrope"


def rotary_fields(keys: Keys, head_dim: int, context: int, theta: float = 10000.0) -> dict[str, Any]:
    """Return `rope_theta`, `rope_scaling` and what belongs to them. Raises `CheckpointError`.

    Llama 3's scaling is in the file as its divisors in float32, `rope_freqs.weight`. They are taken as LongRoPE's for
    every context, which divides the frequencies in the same way.
    """
    fields: dict[str, Any] = {"rope_theta": keys.number("rope.freq_base", theta)}
    dims = keys.integer("rope.dimension_count", head_dim)
    if dims != head_dim:
        fields["partial_rotary_factor"] = dims / head_dim
    kind = keys.get("rope.scaling.type")
    factor = keys.optional_number("rope.scaling.factor") or keys.optional_number("rope.scale_linear")
    tensors = keys.model.tensors
    if FREQUENCIES in tensors:
        if kind not in (None, "none"):
            raise keys.error("rope.scaling.type", f"{kind!r} beside the tensor {FREQUENCIES} is not supported")
        divisors = _divisors(keys, FREQUENCIES, dims)
        plan: dict[str, Any] = {
            "short_factor": divisors,
            "long_factor": divisors,
            "factor": 1.0,
            "attention_factor": 1.0,
        }
        return fields | {"rope_scaling": {"rope_type": LONGROPE, "original_max_position_embeddings": context} | plan}
    if LONG in tensors or SHORT in tensors or kind == LONGROPE:
        return fields | _longrope(keys, dims, context)
    if kind == YARN:
        return fields | {"rope_scaling": _yarn(keys, factor)}
    if kind not in (None, "none", LINEAR):
        raise keys.error(
            "rope.scaling.type", f"{kind!r} is not supported, only 'none', {LINEAR!r}, {YARN!r}, {LONGROPE!r}"
        )
    if kind != "none" and factor is not None and factor != 1:  # a factor alone is linear
        fields["rope_scaling"] = {"rope_type": LINEAR, "factor": factor}
    return fields


def _divisors(keys: Keys, name: str, dims: int) -> list[float]:
    model = keys.model
    tensor = model.tensors.get(name)
    if tensor is None:
        raise model.error(name, "the tensor is missing")
    if tensor.type.name != "F32" or tensor.shape != (dims // 2,):
        raise model.error(name, f"is {tensor.type.name} {tensor.shape}, not F32 {(dims // 2,)}")
    values: list[float] = model.blocks(tensor).view(np.float32).ravel().astype(np.float64).tolist()
    return values


def _longrope(keys: Keys, dims: int, context: int) -> dict[str, Any]:
    original = keys.integer("rope.scaling.original_context_length")
    plan: dict[str, Any] = {
        "rope_type": LONGROPE,
        "short_factor": _divisors(keys, SHORT, dims),
        "long_factor": _divisors(keys, LONG, dims),
        "factor": context / original,
    }
    attention = keys.optional_number("rope.scaling.attn_factor")
    derived = math.sqrt(1 + math.log(max(1.0, context / original)) / math.log(original)) if original > 1 else 1.0
    if attention is not None and not math.isclose(attention, derived, rel_tol=1e-6):
        plan["attention_factor"] = attention
    return {"rope_scaling": plan, "original_max_position_embeddings": original}


def _yarn(keys: Keys, factor: float | None) -> dict[str, Any]:
    plan: dict[str, Any] = {
        "rope_type": YARN,
        "original_max_position_embeddings": keys.integer("rope.scaling.original_context_length"),
    }
    if factor is not None:
        plan["factor"] = factor
    names = {"yarn_attn_factor": "attention_factor", "attn_factor": "attention_factor"}
    for key, field in (names | {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}).items():
        value = keys.optional_number(f"rope.scaling.{key}")
        if value is not None:
            plan[field] = value
    return plan
