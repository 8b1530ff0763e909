"""Families that MLX serves, as far as they are known without the import of mlx-lm, which is slow."""

import ast
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

from workers.checkpoints.architectures.config import ModelConfig
from workers.errors import LoadRefused
from workers.plugins import ADAPTERS, Plugin, registered

BATCHED = frozenset(
    {
        *("llama", "mistral", "qwen2", "mimo", "qwen3", "smollm3", "olmo2", "olmo3", "seed_oss", "phi3", "gemma"),
        *(
            "gemma2",
            "gemma3_text",
            "gemma4_text",
            "gemma4_unified_text",
            "granite",
            "qwen3_moe",
            "mixtral",
            "lfm2",
            "qwen3_5_text",
            "starcoder2",
            "stablelm",
        ),
        *("gpt_neox", "cohere", "cohere2", "phi", "glm", "glm4", "exaone4", "nemotron", "olmo", "arcee", "helium"),
        *("ernie4_5", "ministral", "ministral3", "qwen2_moe", "olmoe", "granitemoe", "granitemoeshared"),
        *("granitemoehybrid", "nemotron_h"),
        *("qwen3_5_moe_text", "qwen3_next", "glm4_moe", "ernie4_5_moe", "phimoe", "lfm2_moe", "gpt_oss"),
        *("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3"),
    }
)
"""Families of which `workers.mlx.runner` computes several sequences at a time."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_batched(family: str) -> bool:
    """Return whether `workers.mlx.runner` computes a family: one of its own, or one with an adapter of a plug-in."""
    return family in BATCHED or adapter_plugin(family) is not None


def adapter_plugin(family: str) -> Plugin | None:
    """Return the plug-in with the adapter of a family; None for one of Baton's own and for one without."""
    return None if family in BATCHED else registered(ADAPTERS, BATCHED).get(family)


def unread_quantization(config: ModelConfig) -> str:
    """Return why the MLX backend cannot read the quantization of a checkpoint; empty if it can.

    mlx-lm would read the integers of GPTQ as those of AWQ, and it does not stack the experts of AWQ.
    """
    method = None if config.quantization is None else config.quantization.method
    if method == "gptq":
        return "'gptq' is not supported by the MLX backend: take --backend iree"
    if method == "awq" and config.experts is not None:
        return "'awq' with a mixture of experts is not supported by the MLX backend: take --backend iree"
    return ""


def mlx_lm_has(model_type: str) -> bool:
    """Return whether mlx-lm has a module for a `model_type`, by the names of its modules and the table of other names
    in its source."""
    if not _NAME.fullmatch(model_type):
        return False
    spec = importlib.util.find_spec("mlx_lm")
    folders = [Path(folder) for folder in ([] if spec is None else spec.submodule_search_locations or [])]
    if any((folder / "models" / f"{model_type}.py").is_file() for folder in folders):
        return True
    return any(model_type in _other_names(folder / "utils.py") for folder in folders)


def _other_names(file: Path) -> Mapping[str, str]:
    """Return `MODEL_REMAPPING` of `mlx_lm.utils`. Raises `LoadRefused` for a version of mlx-lm without it."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="MODEL_REMAPPING")], value=value):
                names: Mapping[str, str] = ast.literal_eval(value)
                return names
    raise LoadRefused(f"{file} has no MODEL_REMAPPING: pip install 'baton-serve[mlx]' installs a version that has it")
