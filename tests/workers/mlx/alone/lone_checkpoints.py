"""Small checkpoints with random weights of families that only mlx-lm describes, made by its own modules."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path

from tests.checkpoints import make_tokenizer

VOCAB = 512
_MAMBA = {
    "num_heads": 4,
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 64,
    "state_size": 16,
    "num_hidden_layers": 2,
    "layer_norm_epsilon": 1e-5,
    "conv_kernel": 4,
    "n_groups": 1,
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": True,
    "time_step_limit": [0.0, 100.0],
    "time_step_rank": 4,
}
_ATTENTION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
_LATENT = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "qk_nope_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "topk_method": "greedy",
    "rope_scaling": {
        "type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
_FALCON = {
    "mamba_d_head": 8,
    "mamba_d_ssm": 32,
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "mamba_expand": 1,
    "mamba_chunk_size": 16,
    "rope_theta": 10000.0,
}
_KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 24}
_RECURRENT = {
    "attention_bias": False,
    "conv1d_width": 4,
    "logits_soft_cap": 30.0,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_window_size": 24,
    "block_types": ["recurrent", "attention"],
}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "mamba2": _MAMBA,
    "deepseek_v2": _ATTENTION | _LATENT | {"num_key_value_heads": 4},
    "falcon_h1": _ATTENTION | _FALCON,
    "gpt_oss": _ATTENTION | _KINDS | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "recurrent_gemma": _ATTENTION | _RECURRENT | {"num_key_value_heads": 1},
    "internlm3": _ATTENTION | {"rms_norm_eps": 1e-5},
}
"""Fields of config.json by family: a Mamba-2 model, one with latent attention and experts, one with attention and
Mamba-2 in each layer, windows beside whole attention, recurrent layers beside windows, and one like Llama."""


def make_lone_checkpoint(directory: Path, family: str, seed: int = 0, **fields: Any) -> Path:
    """Make a float32 checkpoint of a family, with a tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"model_type": family, "vocab_size": VOCAB, "torch_dtype": "float32", **FAMILIES[family], **fields}
    (directory / "config.json").write_text(json.dumps(config))
    module = importlib.import_module(f"mlx_lm.models.{family}")
    with mx.stream(mx.Device(mx.cpu)):
        mx.random.seed(seed)  # the weights that modules begin with
        model = module.Model(module.ModelArgs.from_dict(config))
        keys = iter(mx.random.split(mx.random.key(seed), len(tree_flatten(model.parameters()))))

        def noisy(name: str, array: mx.array) -> mx.array:
            """Add to each weight, so that none is the identity, and answers do not fall into a loop."""
            return array + mx.random.normal(array.shape, scale=0.15, key=next(keys))

        model.update(tree_map_with_path(noisy, model.parameters()))
        mx.save_safetensors(str(directory / "model.safetensors"), dict(tree_flatten(model.parameters())))
    make_tokenizer(directory, VOCAB)
    return directory
