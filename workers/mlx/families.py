"""Families that MLX serves, as far as they are known without the import of mlx-lm, which is slow."""

import importlib.util
import re
from pathlib import Path

BATCHED = frozenset(
    {
        *("llama", "mistral", "qwen2", "mimo", "qwen3", "smollm3", "olmo2", "olmo3", "seed_oss", "phi3", "gemma"),
        *("gemma2", "gemma3_text", "granite", "qwen3_moe", "mixtral", "lfm2", "qwen3_5_text", "starcoder2", "stablelm"),
        *("gpt_neox", "cohere", "cohere2", "phi", "glm", "glm4", "exaone4", "nemotron", "olmo", "arcee", "helium"),
        *("ernie4_5", "ministral", "ministral3", "qwen2_moe", "olmoe", "granitemoe", "granitemoeshared"),
        *("qwen3_5_moe_text", "qwen3_next"),
    }
)
"""Families of which `workers.mlx.runner` computes several sequences at a time."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def mlx_lm_has(model_type: str) -> bool:
    """Return whether mlx-lm has a module for a `model_type`. Imports it only for a name that is not that of a
    module."""
    if not _NAME.fullmatch(model_type):
        return False
    spec = importlib.util.find_spec("mlx_lm")
    folders = [] if spec is None else spec.submodule_search_locations or []
    if any((Path(folder) / "models" / f"{model_type}.py").is_file() for folder in folders):
        return True
    from mlx_lm.utils import MODEL_REMAPPING

    return model_type in MODEL_REMAPPING
