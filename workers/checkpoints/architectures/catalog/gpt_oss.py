"""gpt-oss (https://arxiv.org/abs/2508.10925): attention sinks, and experts with biases and a clamped SwiGLU."""

from collections.abc import Mapping
from dataclasses import replace

from workers.checkpoints.architectures.family import Family, but_every
from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.parts import ExpertNames, Names

CLAMP = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}
"""The constants of the activation, which config.json may state."""

POSITIONS = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The scaling of positions where config.json states none."""


def vary(family: Family, fields: Fields) -> Family:
    """Return the family with its scaling of positions. Raises `CheckpointError` for other constants of the
    activation."""
    for name, expected in CLAMP.items():
        if fields.number(name, expected) != expected:
            raise fields.error(name, f"{fields.get(name)!r} is not supported, only {expected}")
    if fields.get("rope_parameters") is None and fields.get("rope_scaling") is None:
        return replace(family, defaults={**family.defaults, "rope_scaling": POSITIONS})
    return family


GPT_OSS: Mapping[str, Family] = {
    "gpt_oss": Family(
        "GptOssForCausalLM",
        names=Names(
            experts=ExpertNames(
                "mlp.router", "mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj", "mlp.experts.{}.down_proj"
            )
        ),
        biases=None,
        activation="clamped_swiglu",
        activation_alias="silu",
        windowed=but_every(2),
        experts=True,
        expert_biases=True,
        sinks=True,
        reads=frozenset({"num_local_experts", *CLAMP}),
        variant=vary,
        defaults={
            "attention_bias": True,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "num_experts_per_tok": 4,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "sliding_window": 128,
            "torch_dtype": "bfloat16",  # as the weights are; config.json, as published, says nothing
        },
    )
}
"""The family by `model_type` of config.json; checkpoints stack the experts (`workers.checkpoints.expert_stacks`)."""
