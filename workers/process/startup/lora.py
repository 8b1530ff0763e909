"""Checks the adapters that requests choose, before a model is loaded."""

from pathlib import Path
from typing import TYPE_CHECKING

from workers.errors import LoadRefused
from workers.process.spec import WorkerSpec

if TYPE_CHECKING:
    from workers.checkpoints.checkpoint import ModelConfig
    from workers.checkpoints.encoders.config import EncoderConfig
    from workers.checkpoints.lone_config import LoneConfig

BACKENDS = ("iree", "mlx")


def check_lora(spec: WorkerSpec) -> None:
    """Raise `LoadRefused` for more adapters than the settings allow, and for the name of the model."""
    if len(spec.lora_modules) > spec.max_loras:
        given = f"{len(spec.lora_modules)} adapters are more than max_loras, {spec.max_loras}"
        raise LoadRefused(f"lora_modules: {given}: set --max-loras {len(spec.lora_modules)}, or leave some out")
    if spec.model_name in spec.lora_modules:
        raise LoadRefused(f"lora_modules: {spec.model_name!r} is the name of the model: give the adapter another one")


def lora_digest(spec: WorkerSpec, backend: str, config: "ModelConfig | LoneConfig | EncoderConfig") -> str:
    """Return the digest of the adapters of a worker. Raises `LoadRefused` that names the adapter, the file and the
    field or tensor, for one that does not fit the model, and for a backend that applies none."""
    from workers.checkpoints.checkpoint import CheckpointError, ModelConfig  # slow imports that a script does not need
    from workers.checkpoints.encoders.config import EncoderConfig
    from workers.checkpoints.lora.adapted_matrices import adapter_stacks, read_adapters
    from workers.checkpoints.lora.adapters_digest import adapters_digest

    if backend not in BACKENDS:
        raise LoadRefused(f"lora_modules: the {backend} backend applies none: take --backend iree or mlx")
    if isinstance(config, EncoderConfig):
        raise LoadRefused(f"lora_modules: {config.family} is an encoder, to which none are applied: leave them out")
    if not isinstance(config, ModelConfig):
        problem = f"{config.family} is described by mlx-lm alone: apply one adapter with --adapter, or leave it out"
        raise LoadRefused(f"lora_modules: {problem}")
    modules = [(name, Path(path)) for name, path in spec.lora_modules.items()]
    for name, path in modules:
        try:
            adapter_stacks(config, read_adapters([(name, path)], spec.max_lora_rank))
        except CheckpointError as error:
            raise LoadRefused(f"lora_modules: {name}: {error}") from error
    return adapters_digest(modules)


def adapter_bytes(spec: WorkerSpec, config: "ModelConfig") -> int:
    """Return the bytes that adapters and their places take, at 4 a number: rather too much than too little. Raises
    `CheckpointError`."""
    from workers.checkpoints.lora.adapted_matrices import adapter_stacks, read_adapters
    from workers.checkpoints.lora.adapter_places import AdapterPlaces

    rank, modules = spec.max_lora_rank, [(name, Path(path)) for name, path in spec.lora_modules.items()]
    if spec.runtime_loras:
        return AdapterPlaces(config, len(modules) + spec.runtime_loras, rank).nbytes(4)
    stacks = adapter_stacks(config, read_adapters(modules, rank))
    return sum(4 * each.columns * (each.tensor.rows + each.tensor.sources[0][1][1] + 1) for each in stacks)
