"""Models whose widths are no multiples of 16: arguments of `make_checkpoint`.

They have a hidden size, heads, MLPs and experts of such widths, heads of which RoPE rotates 10 lanes or 11 pairs, and
quantized matrices in which heads share groups of inputs.
"""

from collections.abc import Mapping
from typing import Any

UNEVEN: Mapping[str, Mapping[str, Any]] = {
    "llama-uneven": {
        "family": "llama",
        "hidden": 100,
        "heads": 5,
        "kv_heads": 5,
        "head_dim": 20,
        "ffn": 200,
        "vocab": 509,
        "attention_bias": True,
    },
    "gemma3_text-uneven": {
        "family": "gemma3_text",
        "hidden": 84,
        "heads": 4,
        "kv_heads": 1,
        "head_dim": 36,
        "ffn": 150,
        "fields": {"sliding_window": 9},
    },
    "olmo2-uneven": {"family": "olmo2", "hidden": 72, "heads": 6, "kv_heads": 3, "head_dim": 12, "ffn": 100},
    "phi3-uneven": {
        "family": "phi3",
        "tied": False,
        "hidden": 120,
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 20,
        "ffn": 90,
        "fields": {"partial_rotary_factor": 0.5},
    },
    "qwen3_moe-uneven": {
        "family": "qwen3_moe",
        "tied": False,
        "hidden": 40,
        "heads": 2,
        "kv_heads": 2,
        "head_dim": 22,
        "ffn": 72,
        "fields": {"moe_intermediate_size": 20, "mlp_only_layers": [1]},
    },
    "mixtral-uneven": {
        "family": "mixtral",
        "tied": False,
        "hidden": 100,
        "heads": 5,
        "kv_heads": 1,
        "head_dim": 20,
        "ffn": 56,
    },
    "starcoder2-uneven": {
        "family": "starcoder2",
        "hidden": 72,
        "heads": 6,
        "kv_heads": 1,
        "head_dim": 12,
        "ffn": 100,
        "vocab": 509,
    },
    "gpt_neox-uneven": {
        "family": "gpt_neox",
        "tied": False,
        "hidden": 120,
        "heads": 6,
        "kv_heads": 6,
        "head_dim": 20,
        "ffn": 90,
        "fields": {"rotary_pct": 0.3},
    },
    "cohere-uneven-8-bit": {
        "family": "cohere",
        "hidden": 160,
        "heads": 8,
        "kv_heads": 4,
        "head_dim": 20,
        "ffn": 96,
        "quantized_bits": 8,
    },
    "granite-uneven-8-bit": {
        "family": "granite",
        "hidden": 160,
        "heads": 8,
        "kv_heads": 4,
        "head_dim": 20,
        "ffn": 96,
        "quantized_bits": 8,
    },
}
