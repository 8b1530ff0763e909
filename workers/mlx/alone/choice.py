"""Decides whether a checkpoint runs alone on MLX. Without the import of mlx-lm, which is slow."""

from pathlib import Path

from workers.checkpoints.architectures.family import UndescribedParts
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig
from workers.checkpoints.documents import CONFIG, document_file
from workers.checkpoints.lone_config import LoneConfig
from workers.mlx.families import is_batched, mlx_lm_has


def lone_config(path: Path, context: int) -> LoneConfig | None:
    """Return the description of a checkpoint that runs alone: of a family that `workers.mlx.runner` does not compute,
    but mlx-lm does. None for a family of several at a time, whose checkpoints are described in full or refused.

    `context` was asked for. Raises `CheckpointError` for a family that mlx-lm does not have either.
    """
    try:
        if is_batched(ModelConfig.family_of(path)):
            return None
        unknown = None
    except CheckpointError as error:
        if error.field not in ("model_type", "architectures"):
            raise
        unknown = error
    try:
        config = LoneConfig.from_dir(path, context)
    except CheckpointError as error:
        if unknown is not None and error.field == "model_type":  # without one, mlx-lm cannot load it either
            raise unknown from error
        raise
    if unknown is not None and is_batched(config.family) and not isinstance(unknown, UndescribedParts):
        raise unknown  # such as a classifier
    if not mlx_lm_has(config.family):
        config.check_code(path)
        if unknown is not None:
            raise CheckpointError(unknown.file, unknown.field, f"{unknown.problem}; mlx-lm does not have it either")
        problem = f"{config.family!r} is supported neither by the MLX backend nor by mlx-lm: take --backend iree"
        raise CheckpointError(document_file(path, CONFIG), "model_type", problem)
    return config
