"""The files of a LoRA adapter in mlx-lm's layout (https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/LORA.md)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.checkpoints.json_files import CheckpointError

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapters.safetensors"
KINDS = ("lora", "dora")


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """The description of an adapter, read from adapter_config.json."""

    kind: str
    """`lora` or `dora`."""
    layers: int
    """The last layers of the model that it changes."""
    parameters: dict[str, Any]
    """`rank`, `scale`, `dropout` and, if not all matrices are changed, `keys`."""


def read_adapter(path: Path) -> LoraAdapter:
    """Read the description of an adapter. Raises `CheckpointError` that names the file and the field."""
    fields = Fields.read(path / ADAPTER_CONFIG)
    kind = fields.get("fine_tune_type", "lora")
    if kind not in KINDS:
        problem = f"{kind!r} is not supported, only {' and '.join(KINDS)}: fuse the weights with mlx_lm.fuse"
        raise fields.error("fine_tune_type", problem)
    given = fields.section("lora_parameters")
    if given is None:
        raise fields.error("lora_parameters", "is missing: only adapters of mlx-lm are supported")
    given.integer("rank")
    given.number("scale")
    layers = fields.get("num_layers")
    if not isinstance(layers, int) or isinstance(layers, bool) or not -1 <= layers <= MAX_PARTS or layers == 0:
        raise fields.error("num_layers", f"{layers!r} is not a number of layers, or -1 for all")
    if not (path / ADAPTER_WEIGHTS).is_file():
        raise CheckpointError(path / ADAPTER_WEIGHTS, "", "there is no such file")
    return LoraAdapter(kind, layers, {"dropout": 0.0, **given.values})
