"""The memory of a checkpoint by precision, before it is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from msgspec.structs import replace

from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.encoders.memory import estimate_encoder
from workers.checkpoints.lone_config import LoneConfig
from workers.checkpoints.weight_size import weight_bytes
from workers.precision import KvDtype, Quantize
from workers.process.spec import WorkerSpec
from workers.process.startup.context_choice import kind_of, sequence_bytes
from workers.process.startup.vision_size import vision_bytes

TOKENS = 1000
"""Tokens of the smallest KV cache that is shown."""


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Bytes of a model on one backend."""

    backend: str
    weights: Mapping[str, int | None]
    """By `--quantize`, those of a vision tower included; None for one that cannot be asked for, as the checkpoint is
    quantized already."""
    kv: Mapping[str, Mapping[int, int]]
    """Bytes for one sequence, by `--kv-dtype` and by its tokens."""
    state: int
    """The recurrent state of one slot, whatever the precision."""

    @classmethod
    def of(cls, spec: WorkerSpec, backend: str, config: ModelConfig | LoneConfig | EncoderConfig) -> "MemoryFigures":
        """Compute the memory from the headers of the weight files. Raises `CheckpointError`."""
        if isinstance(config, EncoderConfig):
            encoder = {each: estimate_encoder(config, spec.dtype, each) for each in get_args(Quantize)}
            return cls(backend, encoder, {}, 0)
        if isinstance(config, LoneConfig):
            weights: dict[str, int | None] = {"none": config.weight_bytes(Path(spec.model_path), spec.dtype)}
            dtypes: tuple[KvDtype, ...] = ("auto",) if config.row_bytes else ()
        else:
            weights = {each: _weights(spec, config, each) for each in get_args(Quantize)}
            dtypes = get_args(KvDtype) if config.latent is None else ("auto",)
        counts = sorted({TOKENS, config.choose_context(0), config.max_positions})
        kv: dict[str, dict[int, int]] = {
            each: {count: sequence_bytes(replace(spec, kv_dtype=each), backend, config, count) for count in counts}
            for each in dtypes
        }
        return cls(backend, weights, kv, config.state_bytes if isinstance(config, ModelConfig) else 0)


def _weights(spec: WorkerSpec, config: ModelConfig, quantize: Quantize) -> int | None:
    try:
        config.choose_quantization(quantize)
    except CheckpointError:
        return None
    kind, weights = kind_of(spec, config), open_weights(Path(spec.model_path), quantize)
    return weight_bytes(weights, kind, quantize, mtp=config.mtp) + vision_bytes(spec, kind)
