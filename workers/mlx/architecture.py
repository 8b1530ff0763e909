"""mlx-lm's model code with our attention in it, and what of a checkpoint that code does not do."""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
from mlx_lm.models import base
from mlx_lm.utils import load_model

from workers.checkpoint import CheckpointError, ModelConfig, RopeScaling
from workers.mlx.kv import FreshRows

MODULES: Mapping[str, str] = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""The module of `mlx_lm.models` of each family: those whose attention calls `scaled_dot_product_attention` by name."""


def ragged_attention(
    queries: mx.array,
    keys: Any,
    values: Any,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """mlx-lm's `scaled_dot_product_attention`, which also attends ragged rows to their slots."""
    if isinstance(keys, FreshRows):
        if sinks is not None:
            raise NotImplementedError("attention sinks")
        return keys.cache.attend(queries, keys.rows, values.rows, scale)
    output: mx.array = base.scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)
    return output


def plain_swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """mlx-lm's `swiglu` without `mx.compile`."""
    return gate * mx.sigmoid(gate) * up


def bind_module(name: str, *, compiled: bool) -> ModuleType:
    """A fresh copy of `mlx_lm.models.<name>` whose attention is ours.

    A copy, not the module that `import` gives: that one is shared by the whole process, and what others run through
    it must stay as it is. Without `compiled` nothing in the copy goes through `mx.compile`, which on a CPU runs a C++
    compiler and loads what it finds in a folder that other users can write to.
    """
    spec = importlib.util.find_spec(f"mlx_lm.models.{name}")
    if spec is None or spec.loader is None:
        raise ImportError(f"mlx_lm has no module mlx_lm.models.{name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    replacements: dict[str, Callable[..., mx.array]] = {"scaled_dot_product_attention": ragged_attention}
    if not compiled:
        replacements["swiglu"] = plain_swiglu
    for attribute, function in replacements.items():
        if not hasattr(module, attribute):
            raise ImportError(f"mlx_lm.models.{name} has no {attribute}: this mlx-lm is not supported")
        setattr(module, attribute, function)
    return module


def load_architecture(path: Path, config: ModelConfig, *, compiled: bool) -> Any:
    """The `mlx_lm` model of a checkpoint, its weights read lazily. Quantized layers stay quantized.

    Raises `CheckpointError` for what mlx-lm would not compute as the checkpoint says, and for weights that do not fit.
    """
    _refuse_unsupported(path, config)
    module = bind_module(MODULES[config.family], compiled=compiled)
    try:
        model, _ = load_model(
            path,
            lazy=True,
            model_config=_model_config(config),
            get_model_classes=lambda config: (module.Model, module.ModelArgs),
        )
    except (ValueError, KeyError, FileNotFoundError, RuntimeError) as error:
        raise CheckpointError(path, "", f"cannot be loaded by mlx-lm: {error}") from error
    return model


def _refuse_unsupported(path: Path, config: ModelConfig) -> None:
    file = path / "config.json"
    if config.family not in MODULES:
        known = ", ".join(MODULES)
        raise CheckpointError(
            file, "model_type", f"{config.family!r} is not supported by the MLX backend, only {known}"
        )
    if config.family == "qwen2" and config.head_dim * config.heads != config.hidden_size:
        raise CheckpointError(file, "head_dim", f"{config.head_dim} is not hidden_size / num_attention_heads")
    if config.family == "qwen3" and config.qkv_bias:
        raise CheckpointError(file, "attention_bias", "is not supported by the MLX backend for qwen3")


def _model_config(config: ModelConfig) -> dict[str, Any]:
    """Fields that mlx-lm would read differently or not at all, from the reading that both backends share.

    mlx-lm has other defaults than transformers and does not read `rope_parameters` in every family. A window is as
    good as none here: `ModelConfig.choose_context` never gives more rows than it.
    """
    return {
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.qkv_bias,
        "max_position_embeddings": config.max_positions,
        "rope_theta": config.rope_theta,
        "rope_scaling": _rope_scaling(config.rope_scaling),
        "rope_parameters": None,
        "rope_traditional": False,
        "layer_types": None,
        "sliding_window": None,
    }


def _rope_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    return {
        "rope_type": scaling.kind,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_positions,
    }
