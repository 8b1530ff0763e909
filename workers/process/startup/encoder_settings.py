"""Checks the settings of a worker whose model is an encoder, before it is loaded."""

from workers.checkpoints.encoders.config import EncoderConfig
from workers.errors import LoadRefused
from workers.process.spec import WorkerSpec


def check_encoder(spec: WorkerSpec, config: EncoderConfig) -> None:
    """Raise `LoadRefused` for a setting that has no effect on an encoder, which generates nothing and keeps no KV."""
    why = f"has no effect on {config.family}, which is an encoder: leave it out"
    for name, given in (
        ("draft_model", bool(spec.draft_model)),
        ("adapter", bool(spec.adapter)),
        ("embeddings", spec.embeddings),
        ("kv_dtype", spec.kv_dtype != "auto"),
        ("window_cache", spec.window_cache != "full"),
    ):
        if given:
            raise LoadRefused(f"{name}: {why}")
