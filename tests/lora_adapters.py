"""LoRA adapters of random weights for a checkpoint, in PEFT's layout, and the same merged into its weights."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.lora.adapted_matrices import _places

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_lora(
    directory: Path,
    model: Path,
    *,
    targets: Sequence[str] = ALL,
    rank: int = 4,
    seed: int = 0,
    dtype: Any = np.float32,
    gain: float = 1.0,
    **fields: Any,
) -> Path:
    """Make an adapter that changes the modules of `targets` in all layers; `fields` are more of its config."""
    directory.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(targets), "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(config | fields))
    randomness, tensors = np.random.default_rng(seed), {}
    for module, (tensor, source) in sorted(_places(ModelConfig.from_dir(model)).items()):
        if module.rpartition(".")[2] not in targets:
            continue
        outputs, inputs = tensor.sources[source][1]
        a = randomness.normal(0, gain / np.sqrt(inputs), (rank, inputs))
        b = randomness.normal(0, gain / np.sqrt(rank), (outputs, rank))
        tensors[f"base_model.model.{module}.lora_A.weight"] = a.astype(dtype)
        tensors[f"base_model.model.{module}.lora_B.weight"] = b.astype(dtype)
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def merged(directory: Path, model: Path, adapter: Path) -> Path:
    """Copy a checkpoint with an adapter merged into its weights: W + alpha / r B A, in float32."""
    shutil.copytree(model, directory)
    weights, config = load_file(model / "model.safetensors"), json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, a in tensors.items():
        if ".lora_A." not in name:
            continue
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        b, old = tensors[name.replace("lora_A", "lora_B")], weights[f"{module}.weight"]
        added = b.astype(np.float32) @ a.astype(np.float32) * (config["lora_alpha"] / config["r"])
        weights[f"{module}.weight"] = (old.astype(np.float32) + added).astype(old.dtype)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


__all__ = ["ALL", "make_lora", "merged", "ml_dtypes"]
