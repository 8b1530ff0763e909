"""LoRA adapters of mlx-lm: small matrices beside those of a model, applied when it is loaded.

`mlx_lm.tuner` would import what training needs.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from workers.checkpoints.adapter_files import ADAPTER_WEIGHTS, read_adapter
from workers.checkpoints.json_files import CheckpointError

PARTS = ("lora_a", "lora_b")
FLOATS = (mx.float32, mx.float16, mx.bfloat16)


class AdaptedLinear(nn.Module):  # type: ignore[misc]
    """A linear module, plain or quantized, to whose output scale * x A B is added, as mlx-lm's `LoRALinear` does
    (https://arxiv.org/abs/2106.09685)."""

    def __init__(self, linear: nn.Module, a: mx.array, b: mx.array, scale: float) -> None:
        """`a` is [in, rank], `b` [rank, out]."""
        super().__init__()
        self.linear = linear
        self.lora_a = a
        self.lora_b = b
        self._scale = scale

    def __call__(self, x: mx.array) -> mx.array:
        out: mx.array = self.linear(x)
        return out + (self._scale * ((x @ self.lora_a) @ self.lora_b)).astype(x.dtype)


def apply_adapter(model: Any, path: Path) -> None:
    """Put the matrices of an adapter beside those of a model, whose weights may be quantized.

    Raises `CheckpointError` that names the field or tensor for an adapter that is malformed, of another kind, or that
    does not fit the model.
    """
    adapter, file = read_adapter(path), path / ADAPTER_WEIGHTS
    try:
        tensors: dict[str, mx.array] = dict(mx.load(str(file)))  # type: ignore[arg-type]  # a mapping, of this format
    except RuntimeError as error:
        raise CheckpointError(file, "", f"cannot be read: {error}") from error
    if not tensors:
        raise CheckpointError(file, "", "has no tensors")
    modules = dict(model.named_modules())
    changed: dict[str, nn.Module] = {}
    for name in sorted(tensors):
        module, _, part = name.rpartition(".")
        linear = modules.get(module)
        if part not in PARTS or not isinstance(linear, nn.Linear | nn.QuantizedLinear):
            raise CheckpointError(file, name, "is not of a linear module of this model: only such can be adapted")
        if tensors[name].dtype not in FLOATS:
            raise CheckpointError(file, name, f"has the type {tensors[name].dtype}, not one of real numbers")
        outputs, inputs = linear.weight.shape
        if isinstance(linear, nn.QuantizedLinear):
            inputs = inputs * 32 // linear.bits
        shape = (inputs, adapter.rank) if part == "lora_a" else (adapter.rank, outputs)
        if tensors[name].shape != shape:
            raise CheckpointError(file, name, f"has the shape {tensors[name].shape}, the model needs {shape}")
        for other in PARTS:
            if f"{module}.{other}" not in tensors:
                raise CheckpointError(file, f"{module}.{other}", "the tensor is missing")
        changed[module] = linear
    adapted = [
        (name, AdaptedLinear(linear, tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"], adapter.scale))
        for name, linear in changed.items()
    ]
    model.update_modules(tree_unflatten(adapted))
