"""Chooses the adapter of a checkpoint, and refuses those that mlx-lm would compute differently."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from workers.checkpoints.checkpoint import CheckpointError, ModelConfig
from workers.mlx.architecture import Adapter
from workers.mlx.families import adapter_plugin, unread_quantization
from workers.mlx.loading.adapters import ADAPTERS, GRANITE_HYBRID
from workers.mlx.loading.model_fields import attention_interval


def choose_adapter(path: Path, config: ModelConfig) -> Adapter:
    """Find the family's adapter. Raises `CheckpointError` for a checkpoint that it would compute differently."""
    file = path / "config.json"
    if problem := unread_quantization(config):
        raise CheckpointError(file, "quantization_config.quant_method", problem)
    adapter = ADAPTERS.get(config.family)
    if config.family == "granitemoeshared" and config.experts is not None and not config.experts.shared_ffn:
        adapter = ADAPTERS["granitemoe"]  # the module with shared experts has no layer without one
    if config.family == "granitemoehybrid" and len(config.names.gate_up) > 1:
        adapter = replace(GRANITE_HYBRID, takes={})  # mlx-lm's own MLP
    if adapter is None and (plugin := adapter_plugin(config.family)) is not None:
        adapter = plugin.load(Adapter)
    if adapter is None:
        known = ", ".join(ADAPTERS)
        raise CheckpointError(
            file, "model_type", f"{config.family!r} is not supported by the MLX backend, only {known}"
        )
    if not adapter.free_head_dim and config.head_dim * config.heads != config.hidden_size:
        raise CheckpointError(file, "head_dim", f"{config.head_dim} is not hidden_size / num_attention_heads")
    if not adapter.dense_layers and not all(layer.experts for layer in config.plan):
        problem = f"an MLP in place of experts is not supported by the MLX backend for {config.family}"
        raise CheckpointError(file, "decoder_sparse_step", f"{problem}: take --backend iree")
    if config.family == "ernie4_5_moe" and any(a.experts > b.experts for a, b in pairwise(config.plan)):
        problem = "a dense layer behind one with experts is not supported by the MLX backend: take --backend iree"
        raise CheckpointError(file, "moe_layer_interval", problem)
    if adapter.mixer == "linear_attn" and attention_interval(config) is None:
        problem = "is supported by the MLX backend with attention in every nth layer only"
        raise CheckpointError(file, "layer_types", problem)
    experts = config.experts
    if adapter.fixed_biases and experts is not None and not config.qkv_bias:
        problem = "false is not supported by the MLX backend: take --backend iree"
        raise CheckpointError(file, "attention_bias", problem)
    if adapter.fixed_biases and experts is not None and not (experts.biases or config.head_bias):
        problem = "false is not supported by the MLX backend: take --backend iree"
        raise CheckpointError(file, "lm_head_bias", problem)
    if adapter.fixed_biases and experts is None and not (config.qkv_bias and config.o_bias and config.mlp_bias):
        raise CheckpointError(file, "use_bias", f"false is not supported by the MLX backend for {config.family}")
    if config.tie_embeddings and adapter.head == "kept":
        raise CheckpointError(file, "tie_word_embeddings", f"is not supported by the MLX backend for {config.family}")
    if config.o_bias and not (adapter.biases or adapter.fixed_biases):
        raise CheckpointError(file, "attention_bias", f"is not supported by the MLX backend for {config.family}")
    return adapter
