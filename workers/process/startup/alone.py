"""Checks the settings of a worker whose model runs alone, before it is loaded, and logs that it does."""

import structlog

from workers.checkpoints.lone_config import LoneConfig
from workers.errors import LoadRefused
from workers.process.spec import WorkerSpec


def check_alone(spec: WorkerSpec, config: LoneConfig) -> None:
    """Raise `LoadRefused` for a setting that has no effect on such a model."""
    config.check(kv_dtype=spec.kv_dtype, window_cache=spec.window_cache, dtype=spec.dtype, embeddings=spec.embeddings)
    if spec.draft_model:
        raise LoadRefused(
            f"draft_model: {config.family} is described by mlx-lm alone, and drafts for it could not be verified: "
            "leave it out"
        )


def log_alone(spec: WorkerSpec, slots: int) -> None:
    """Log that a runner with so many slots computes requests one after the other, if the settings have more."""
    if slots < spec.max_batch_size:
        log = structlog.get_logger()
        log.warning(
            "model_runs_alone",
            model=spec.model_name,
            slots=slots,
            max_batch_size=spec.max_batch_size,
            reason="only mlx-lm describes its family, and its caches have one sequence",
        )
