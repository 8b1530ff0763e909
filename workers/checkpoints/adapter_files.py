"""The files of a LoRA adapter in mlx-lm's layout (https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/LORA.md)."""

from dataclasses import dataclass
from pathlib import Path

from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.json_files import CheckpointError, read_json

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapters.safetensors"
MAX_RANK = 4096


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """The description of an adapter, read from adapter_config.json."""

    rank: int
    scale: float
    """Factor of what the adapter adds."""


def read_adapter(path: Path) -> LoraAdapter:
    """Read the description of an adapter. Raises `CheckpointError` that names the file and the field."""
    file = path / ADAPTER_CONFIG
    fields = Fields(file, read_json(file))
    kind = fields.get("fine_tune_type", "lora")
    if kind != "lora":
        raise fields.error("fine_tune_type", f"{kind!r} is not supported, only lora: fuse the weights with mlx_lm.fuse")
    given = fields.section("lora_parameters")
    if given is None:
        raise fields.error("lora_parameters", "is missing: only adapters of mlx-lm are supported")
    if not (path / ADAPTER_WEIGHTS).is_file():
        raise CheckpointError(path / ADAPTER_WEIGHTS, "", "there is no such file")
    return LoraAdapter(given.integer("rank", most=MAX_RANK), given.number("scale"))
