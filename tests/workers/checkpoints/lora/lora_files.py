"""LoRA adapters of random weights for a checkpoint, in PEFT's layout, and the same merged into its weights."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from workers.checkpoints.architectures.tensors import tensors
from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.lora.adapted_matrices import ADAPTED

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def make_lora(
    directory: Path,
    model: Path,
    *,
    targets: Sequence[str] = ALL,
    rank: int = 4,
    seed: int = 0,
    dtype: Any = np.float32,
    modules: Mapping[str, tuple[int, ...]] | None = None,
    **fields: Any,
) -> Path:
    """Make an adapter that changes the modules of `targets` in all layers, or `modules` with the shapes of their
    weights; `fields` are more of its config."""
    directory.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(targets), "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(config | fields))
    randomness, made = np.random.default_rng(seed), {}
    for module, (outputs, inputs) in (modules_of(model, targets) if modules is None else modules).items():
        prefix = f"base_model.model.{module}"
        a = randomness.normal(0, 1 / np.sqrt(inputs), (rank, inputs))
        b = randomness.normal(0, 1 / np.sqrt(rank), (outputs, rank))
        made[f"{prefix}.lora_A.weight"], made[f"{prefix}.lora_B.weight"] = a.astype(dtype), b.astype(dtype)
    save_file(made, directory / "adapter_model.safetensors")
    return directory


def modules_of(model: Path, targets: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The linear modules of a checkpoint with these names, and the shapes of their weights."""
    return {
        name.removesuffix(".weight"): shape
        for tensor in tensors(ModelConfig.from_dir(model))
        if tensor.name.rpartition(".")[2] in ADAPTED
        for name, shape in tensor.sources
        if name.removesuffix(".weight").rpartition(".")[2] in targets
    }


def merged(directory: Path, model: Path, adapter: Path) -> Path:
    """Copy a checkpoint with an adapter merged into its weights: W + alpha / r B A, computed in float32."""
    shutil.copytree(model, directory)
    weights, config = load_file(model / "model.safetensors"), json.loads((adapter / "adapter_config.json").read_text())
    pairs = load_file(adapter / "adapter_model.safetensors")
    for name in [name for name in pairs if ".lora_A." in name]:
        weight = name.removeprefix("base_model.model.").replace("lora_A.", "")
        added = pairs[name.replace("lora_A", "lora_B")] @ pairs[name] * (config["lora_alpha"] / config["r"])
        weights[weight] = (weights[weight].astype(np.float32) + added).astype(weights[weight].dtype)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
