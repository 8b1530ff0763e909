"""A published config.json, and a reader of it with fields changed."""

import json
from pathlib import Path
from typing import Any

from workers.checkpoints.checkpoint import ModelConfig

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(directory: Path, base: dict[str, Any] = LLAMA, /, **changes: Any) -> ModelConfig:
    values = {name: value for name, value in (base | changes).items() if value is not ...}
    (directory / "config.json").write_text(json.dumps(values))
    return ModelConfig.from_dir(directory)
