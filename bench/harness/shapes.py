"""Model shapes that benchmarks measure: checkpoints of random weights with a tokenizer, made once and then kept.

110m is a Llama (12 layers, width 768, 12/4 heads, MLP 2048, vocabulary 32000), 0.5b is Qwen2.5-0.5B (24 layers, width
896, 14/2 heads, MLP 4864, vocabulary 151936, biases), both with tied embeddings; 110m-yarn is the first with positions
extended by YaRN from 8192, 3m has the size of the built-in model, 110m-uneven has widths that a CPU pads to those of
the first, 10m drafts for the first (2 layers, width 256), gemma3-270m is Gemma-3-270M (18 layers, width 640, 4/1 heads
of 256 lanes, MLP 2048, vocabulary 262144), granite-4.0-h-350m is Granite-4.0-H-350M (32 layers, of which 4 attend and
28 are Mamba-2 of 48 heads, width 768, 12/4 heads, MLP 2048, vocabulary 100352), lfm2-350m is LFM2-350M (16 layers, of
which 6 attend, width 1024, 16/8 heads, MLP 4608, vocabulary 65536), lfm2-1.2b is LFM2-1.2B (width 2048, 32/8 heads, MLP
8192), qwen3.5-0.8b is Qwen3.5-0.8B (24 layers, of which 6 attend, width 1024, 8/2 heads of 256 lanes, MLP 3584,
vocabulary 248320), deepseek-0.4b is like DeepSeek-V2-Lite, smaller, granite-moe-1b is Granite-3.0-1B-A400M (24 layers,
width 1024, 16/8 heads, 8 of 32 experts of width 512, vocabulary 49152), and tiny is for `--smoke`.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.checkpoints import make_checkpoint

_LLAMA_110M: dict[str, Any] = {
    "family": "llama",
    "layers": 12,
    "hidden": 768,
    "heads": 12,
    "kv_heads": 4,
    "head_dim": 64,
    "ffn": 2048,
    "vocab": 32000,
}
SHAPES: dict[str, dict[str, Any]] = {
    "110m": _LLAMA_110M,
    "3m": {**_LLAMA_110M, "layers": 4, "hidden": 256, "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 2048},
    "10m": {**_LLAMA_110M, "layers": 2, "hidden": 256, "heads": 4, "kv_heads": 2, "ffn": 768},
    "0.5b": {
        "family": "qwen2",
        "layers": 24,
        "hidden": 896,
        "heads": 14,
        "kv_heads": 2,
        "head_dim": 64,
        "ffn": 4864,
        "vocab": 151936,
    },
    "110m-yarn": {
        **_LLAMA_110M,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
    },
    "110m-uneven": {**_LLAMA_110M, "hidden": 756, "head_dim": 60, "ffn": 2036},
    "gemma3-270m": {
        "family": "gemma3_text",
        "layers": 18,
        "hidden": 640,
        "heads": 4,
        "kv_heads": 1,
        "head_dim": 256,
        "ffn": 2048,
        "vocab": 262144,
        "fields": {"query_pre_attn_scalar": 256, "sliding_window": 512, "sliding_window_pattern": 6},
    },
    "granite-4.0-h-350m": {
        "family": "granitemoehybrid",
        "layers": 32,
        "hidden": 768,
        "heads": 12,
        "kv_heads": 4,
        "head_dim": 64,
        "ffn": 2048,
        "vocab": 100352,
        "fields": {
            "layer_types": ["attention" if layer in (10, 13, 17, 27) else "mamba" for layer in range(32)],
            "shared_intermediate_size": 2048,
            "mamba_n_heads": 48,
            "mamba_d_head": 32,
            "mamba_n_groups": 1,
            "mamba_d_state": 128,
        },
    },
    "lfm2-350m": {
        "family": "lfm2",
        "layers": 16,
        "hidden": 1024,
        "heads": 16,
        "kv_heads": 8,
        "head_dim": 64,
        "ffn": 6656,
        "vocab": 65536,
        "fields": {
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 256,
            "layer_types": ["full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)],
        },
    },
    "deepseek-0.4b": {
        "family": "deepseek_v2",
        "layers": 8,
        "hidden": 1024,
        "heads": 16,
        "kv_heads": 16,
        "ffn": 4096,
        "vocab": 32000,
        "fields": {
            "num_key_value_heads": 16,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "topk_method": "greedy",
            "n_routed_experts": 24,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 512,
        },
    },
    "qwen3.5-0.8b": {
        "family": "qwen3_5_text",
        "layers": 24,
        "hidden": 1024,
        "heads": 8,
        "kv_heads": 2,
        "head_dim": 256,
        "ffn": 3584,
        "vocab": 248320,
        "fields": {
            "layer_types": ["linear_attention" if layer % 4 < 3 else "full_attention" for layer in range(24)],
            "partial_rotary_factor": 0.25,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
        },
    },
    "lfm2-1.2b": {
        "family": "lfm2",
        "layers": 16,
        "hidden": 2048,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 64,
        "ffn": 12288,
        "vocab": 65536,
        "fields": {
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 256,
            "layer_types": ["full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)],
        },
    },
    "granite-moe-1b": {
        "family": "granitemoe",
        "layers": 24,
        "hidden": 1024,
        "heads": 16,
        "kv_heads": 8,
        "head_dim": 64,
        "ffn": 512,
        "vocab": 49152,
        "fields": {"num_local_experts": 32, "num_experts_per_tok": 8},
    },
    "tiny": {"family": "llama", "layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "ffn": 128},
}
TOKENS = range(3, 300)
"""Token ids of prompts: bytes and words, in every shape's tokenizer."""


def make_model(folder: Path, name: str) -> Path:
    """The checkpoint of a shape in bfloat16, made in `folder` unless it exists. Takes up to 4 GB of memory."""
    arguments: dict[str, Any] = {"dtype": "bfloat16", "max_positions": 32768} | SHAPES[name]
    digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()[:8]
    path = folder / "models" / f"{name}-{digest}"
    if not path.exists():
        half = path.with_name(f"{path.name}.{os.getpid()}")
        make_checkpoint(half, **arguments)
        try:
            half.rename(path)
        except OSError:  # another process was first
            shutil.rmtree(half)
    return path
