"""LoRA adapters of mlx-lm: small matrices beside those of a model, applied when it is loaded."""

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers

from workers.checkpoints.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, read_adapter
from workers.checkpoints.json_files import CheckpointError

ADDED = ("lora_a", "lora_b", "m")
"""The parameters that an adapter adds to a module."""


def apply_adapter(model: Any, path: Path) -> None:
    """Put the layers of an adapter around those of a model, whose weights may be quantized.

    Raises `CheckpointError` that names the field or tensor for an adapter that is malformed, of another kind, or that
    does not fit the model.
    """
    adapter = read_adapter(path)
    config, weights = path / ADAPTER_CONFIG, path / ADAPTER_WEIGHTS
    if adapter.layers > len(model.layers):
        problem = f"{adapter.layers} is more than the {len(model.layers)} layers of the model"
        raise CheckpointError(config, "num_layers", problem)
    try:
        linear_to_lora_layers(model, adapter.layers, adapter.parameters, use_dora=adapter.kind == "dora")
        tensors: dict[str, mx.array] = dict(mx.load(str(weights)))  # type: ignore[arg-type]  # a mapping, of this format
    except Exception as error:  # of any kind, as for `mlx_lm.utils.load_model`
        raise CheckpointError(config, "lora_parameters", f"{type(error).__name__}: {error}") from error
    own = {name: array for name, array in tree_flatten(model.parameters()) if name.rpartition(".")[2] in ADDED}
    for name, tensor in tensors.items():
        if name not in own:
            raise CheckpointError(weights, name, "is no tensor of an adapter of this model")
        if tensor.shape != own[name].shape:
            raise CheckpointError(weights, name, f"has the shape {tensor.shape}, the model needs {own[name].shape}")
    if missing := sorted(set(own) - set(tensors)):
        raise CheckpointError(weights, missing[0], "the tensor is missing")
    model.load_weights(list(tensors.items()), strict=False)
    model.eval()
