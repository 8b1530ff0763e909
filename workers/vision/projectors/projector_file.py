"""A GGUF file with a vision tower: typed access to its metadata, and to its tensors by their names in the file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from workers.checkpoints.architectures.fields import MAX_PARTS
from workers.checkpoints.gguf.architectures import PROJECTOR
from workers.checkpoints.gguf.blocks import plain_values
from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.gguf.keys import Keys
from workers.checkpoints.json_files import CheckpointError

VISION = "vision."
"""The prefix of the tower's keys, behind that of the architecture."""


class ProjectorUnfit(CheckpointError):
    """Raised for a projector that is not supported, or that does not fit the language model. The text names the file
    and the key or tensor."""


class ProjectorFile:
    """The metadata of a projector and the shapes of its tensors."""

    def __init__(self, path: Path) -> None:
        """Raises `CheckpointError` for a file that cannot be read, and `ProjectorUnfit` for one that is no projector of
        images."""
        self.model = GgufFile.open(path)
        self.keys = Keys(self.model)
        if self.keys.architecture != PROJECTOR:
            problem = f"{self.keys.architecture!r} is no projector of images, whose files have {PROJECTOR!r}"
            raise ProjectorUnfit(path, "general.architecture", problem)
        if self.keys.get("has_vision_encoder", True) is not True:
            raise ProjectorUnfit(path, f"{PROJECTOR}.has_vision_encoder", "is false: the projector takes no images")

    @property
    def path(self) -> Path:
        return self.model.path

    @property
    def type(self) -> str:
        """The type of the projector, which stands for a family. Raises `CheckpointError`."""
        value = self.keys.get("projector_type") or self.keys.get(f"{VISION}projector_type")
        if not isinstance(value, str):
            raise self.keys.error("projector_type", "is missing or no string")
        return value

    def unfit(self, key: str, problem: str) -> ProjectorUnfit:
        """Return the error about a key of the tower."""
        return ProjectorUnfit(self.path, f"{PROJECTOR}.{VISION}{key}", problem)

    def integer(self, key: str, default: int | None = None) -> int:
        return self.keys.integer(f"{VISION}{key}", default)

    def get(self, key: str) -> Any:
        return self.keys.get(f"{VISION}{key}")

    def number(self, key: str) -> float:
        return self.keys.number(f"{VISION}{key}")

    @property
    def layers(self) -> int:
        layers = self.integer("block_count")
        if layers > MAX_PARTS:
            raise self.keys.error(f"{VISION}block_count", f"{layers} is more than {MAX_PARTS} layers")
        return layers

    @property
    def hidden(self) -> int:
        return self.integer("embedding_length")

    @property
    def mlp(self) -> int:
        """Inputs of the second matrix of MLPs, by its shape: `feed_forward_length` is wrong in files of Qwen2-VL."""
        up, down = (self.shape(f"v.blk.0.{name}.weight") for name in ("ffn_up", "ffn_down"))
        return up[1] if self.swapped else down[-1]

    @property
    def swapped(self) -> bool:
        """The first matrix of MLPs is named `ffn_down`, and the second one `ffn_up`, as early converters did."""
        up, down = (self.shape(f"v.blk.0.{name}.weight") for name in ("ffn_up", "ffn_down"))
        return up[0] == down[-1] == self.hidden != up[-1]

    def has(self, name: str) -> bool:
        return name in self.model.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor. Raises `CheckpointError` if it is missing, or if it is no matrix or more."""
        tensor = self.model.tensors.get(name)
        if tensor is None:
            raise self.model.error(name, "the tensor is missing, which images need")
        if len(tensor.shape) < 2:
            raise self.model.error(name, f"has the shape {tensor.shape}, and is no matrix")
        return tensor.shape


class ProjectorTensors(Mapping[str, NDArray[Any]]):
    """The tensors of a projector by their names in the file, read on access: plain numbers as they are stored,
    quantized ones in float32."""

    def __init__(self, model: GgufFile) -> None:
        self._model = model

    def __getitem__(self, name: str) -> NDArray[Any]:
        tensor = self._model.tensors[name]
        return plain_values(self._model.blocks(tensor), tensor.type, tensor.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._model.tensors)

    def __len__(self) -> int:
        return len(self._model.tensors)
