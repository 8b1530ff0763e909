"""Encoders made of decoders: each token attends to later ones as well, and there is no head.

config.json has the fields of the decoder, which describe everything else.
"""

from collections.abc import Mapping
from typing import Any

from workers.checkpoints.architectures.config import CLASSIFIER, ModelConfig
from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.encoders.config import EncoderConfig, EncoderLayer

DECODERS: Mapping[str, str] = {"gemma3_text": "gemma3_text", "llama_bidirec": "llama"}
"""Families of decoders by the `model_type` of their encoders."""
SWITCH = "use_bidirectional_attention"
"""The field by which a model of a family that has both is an encoder."""
SWITCHED = frozenset({"gemma3_text"})
POOLINGS = ("avg",)
"""Values of `pooling` of NVIDIA's models that are supported."""


def is_bidirectional(values: Mapping[str, Any], family: str) -> bool:
    """Return whether a config.json of this `model_type` describes an encoder."""
    return family not in SWITCHED or bool(values.get(SWITCH))


def read_bidirectional(fields: Fields, family: str) -> EncoderConfig:
    """Read the description of a decoder whose tokens attend to later ones. Raises `CheckpointError` for what encoders
    have not."""
    pooling = fields.get("pooling")
    if pooling is not None and pooling not in POOLINGS:
        raise fields.error("pooling", f"{pooling!r} is not supported, only {', '.join(POOLINGS)}")
    names = fields.get("architectures")
    if isinstance(names, list) and any(str(name).endswith(CLASSIFIER) for name in names):
        raise fields.error("architectures", f"{names!r} is not supported: such models make embeddings, and no scores")
    decoder = DECODERS[family]
    named = {"model_type": decoder, "architectures": [FAMILIES[decoder].architecture]}
    inner = Fields(fields.file, {**fields.without((SWITCH, "pooling", "temperature")).values, **named})
    config = ModelConfig.from_fields(inner)
    for rope in config.ropes:
        if rope.dims != config.head_dim or rope.frequencies(config.max_positions)[1] != 1:
            raise fields.error("rope_parameters", "are not supported: encoders rotate all lanes, without a factor")
    return EncoderConfig(
        family=family,
        architecture="",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        ffn=config.ffn,
        heads=config.heads,
        kv_heads=config.kv_heads,
        lanes=config.head_dim,
        # Half of the stated window is on either side.
        plan=tuple(EncoderLayer(each.rope, None if each.window is None else each.window // 2) for each in config.plan),
        ropes=config.ropes,
        activation=config.activation,
        gated=True,
        pre_norm=True,
        eps=config.rms_eps,
        norm_bias=False,
        rms=True,
        norm_offset=config.norm_offset,
        norms_around=config.norms.after_attention is not None,
        head_norms=config.head_norm is not None,
        embedding_norm=False,
        embedding_scale=config.embedding_scale,
        score_scale=config.attention_scale,
        qkv_bias=config.qkv_bias,
        attention_out_bias=config.o_bias,
        up_bias=config.mlp_bias,
        down_bias=config.mlp_bias,
        max_positions=config.max_positions,
        dtype=config.dtype,
    )
