"""Which tensors a checkpoint must not have beside those that are read: one left out would be another model."""

import re
from collections.abc import Iterable
from pathlib import Path

from workers.checkpoint import ModelConfig
from workers.weights import CheckpointError

_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,7})\.(.+)")
_DERIVED = "self_attn.rotary_emb.inv_freq"
"""Kept in old checkpoints, and computed from config.json."""


def check_tensors(names: Iterable[str], config: ModelConfig, path: Path) -> None:
    """Refuse a tensor that a model of this config does not read. Raises `CheckpointError` with its name."""
    # A head beside tied embeddings is a copy of them, in transformers as well.
    whole = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    parts = _layer_parts(config)
    for name in names:
        match = _LAYER.fullmatch(name)
        if name in whole or (match and int(match[1]) < config.layers and match[2] in parts):
            continue
        raise CheckpointError(path, name, f"the tensor is not part of a {config.family} model as config.json has it")


def _layer_parts(config: ModelConfig) -> frozenset[str]:
    parts = {_DERIVED, "input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.o_proj.weight"}
    parts.update(f"mlp.{each}_proj.weight" for each in ("gate", "up", "down"))
    parts.update(f"self_attn.{each}_proj.weight" for each in "qkv")
    if config.qkv_bias:
        parts.update(f"self_attn.{each}_proj.bias" for each in "qkv")
    if config.o_bias:
        parts.add("self_attn.o_proj.bias")
    if config.qk_norm:
        parts.update(("self_attn.q_norm.weight", "self_attn.k_norm.weight"))
    return frozenset(parts)
