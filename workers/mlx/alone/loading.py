"""Loads a checkpoint as mlx-lm does, without code that comes with it."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map_with_path
from mlx_lm import utils

from workers.checkpoints.checkpoint import CheckpointError
from workers.checkpoints.weight_size import QUANTIZED_GROUP
from workers.precision import Dtype, Quantize


def load_lone_model(path: Path, dtype: Dtype, quantize: Quantize) -> Any:
    """Make the model of a checkpoint. Weights are read lazily; those that are quantized stay so.

    Raises `CheckpointError` for what mlx-lm does not load. It raises errors of any kind for a checkpoint that does not
    fit its module, and none is a fault of Baton.
    """
    try:
        model, _ = utils.load_model(path, lazy=True, trust_remote_code=False)
    except Exception as error:
        problem = f"cannot be loaded by mlx-lm: {type(error).__name__}: {error}"
        raise CheckpointError(path / "config.json", "", problem) from error
    _check_written(path, model)
    if dtype != "auto":
        _cast(model, getattr(mx, dtype))
    if quantize != "none":
        _quantize(path, model, 8 if quantize == "int8" else 4)
    return model


def _check_written(path: Path, model: Any) -> None:
    """Raise `CheckpointError` for a vocabulary without tokens whose logits the module of mlx-lm writes, whatever the
    vocabulary (phi3small): MLX does not check indices, and writes out of bounds."""
    written = getattr(model, "_dummy_tokenizer_ids", None)
    if written is None:
        return
    most, vocab = int(np.array(written).max()), int(model.args.vocab_size)
    if most >= vocab:
        problem = f"{vocab} is not above {most}, a token whose logits mlx-lm writes"
        raise CheckpointError(path / "config.json", "vocab_size", problem)


def _cast(model: Any, dtype: mx.Dtype) -> None:
    """Cast the floating-point parameters, but those that the model keeps as they are."""
    casts = getattr(model, "cast_predicate", lambda name: True)

    def cast(name: str, array: mx.array) -> mx.array:
        return array.astype(dtype) if casts(name) and mx.issubdtype(array.dtype, mx.floating) else array

    model.update(tree_map_with_path(cast, model.parameters()))


def _quantize(path: Path, model: Any, bits: int) -> None:
    """Quantize the matrices that the model allows, where their rows are whole groups. Raises `CheckpointError` if there
    are none."""
    allows = getattr(model, "quant_predicate", None) or (lambda name, module: True)
    quantized = []

    def fits(name: str, module: Any) -> bool:
        fit = (
            hasattr(module, "to_quantized")
            and module.weight.shape[-1] % QUANTIZED_GROUP == 0
            and not name.endswith((".gate", ".router"))
            and bool(allows(name, module))
        )
        quantized.append(fit)
        return fit

    nn.quantize(model, group_size=QUANTIZED_GROUP, bits=bits, class_predicate=fits)
    if not any(quantized):
        problem = f"no matrix has rows of whole groups of {QUANTIZED_GROUP}: none can be made int{bits}"
        raise CheckpointError(path / "config.json", "hidden_size", problem)
