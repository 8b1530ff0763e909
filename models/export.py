"""Writes a trained model in Hugging Face layout as LlamaForCausalLM, for transformers and mlx-lm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save
from tokenizers import Tokenizer

from models.tokenizer import END_OF_TEXT, PAD, TURN_END, save_tokenizer, token_id
from models.training import Shape


def config(shape: Shape, tokenizer: Tokenizer) -> dict[str, object]:
    """Return the contents of config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": token_id(tokenizer, TURN_END),
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.max_positions,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": token_id(tokenizer, PAD),
        "rms_norm_eps": shape.rms_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocabulary,
    }


def export(directory: Path, shape: Shape, tensors: Mapping[str, np.ndarray], tokenizer: Tokenizer) -> None:
    """Write the config, bfloat16 weights, tokenizer, template and generation defaults to the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    rounded = {name: np.asarray(value).astype(ml_dtypes.bfloat16) for name, value in tensors.items()}
    (directory / "model.safetensors").write_bytes(save(rounded, metadata={"format": "pt"}))
    stops = [token_id(tokenizer, TURN_END), token_id(tokenizer, END_OF_TEXT)]
    generation = {"do_sample": False, "eos_token_id": stops, "pad_token_id": token_id(tokenizer, PAD)}
    _write(directory / "config.json", config(shape, tokenizer))
    _write(directory / "generation_config.json", generation)
    save_tokenizer(tokenizer, directory, shape.max_positions)


def _write(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
