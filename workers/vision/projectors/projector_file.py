"""A GGUF file with a vision tower: typed access to its metadata, and to its tensors by their names in the file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from workers.checkpoints.architectures.fields import MAX_PARTS, brief
from workers.checkpoints.gguf.architectures import PROJECTOR
from workers.checkpoints.gguf.blocks import plain_values
from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.gguf.keys import Keys
from workers.checkpoints.json_files import CheckpointError

VISION = "vision."
"""The prefix of the tower's keys, behind that of the architecture."""
OTHER_ENCODERS = ("audio.", "gen.", "text.")
"""The prefixes of keys of what is no tower of images, likewise."""
WITHOUT_EFFECT = frozenset(
    {
        "has_audio_encoder",
        "has_llava_projector",
        "has_qwen2vl_merger",
        "has_text_encoder",
        "use_gelu",
        "use_silu",
        "vision.feed_forward_length",
        "vision.image_crop_resolution",
        "vision.image_size",
        "vision.image_split_resolution",
        "vision.projection_dim",
    }
)
"""Keys that change nothing where they are not read: what tensors tell as well, the size of images that keep their
ratio, settings of tiles without a grid of tiles, and the activation of what has no MLP."""
NEUTRAL = {
    "vision.image_aspect_ratio": "pad",
    "vision.mm_patch_merge_type": "flat",
    "vision.mm_projector_type": "mlp2x_gelu",
}
"""Keys with the value at which they change nothing."""
TOLERANCE = 1e-3
"""The relative error of an epsilon, which files have in float32."""


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
        value, own = (self.keys.get(f"{prefix}projector_type") for prefix in ("", VISION))
        value = value or own
        if not isinstance(value, str):
            raise self.keys.error("projector_type", "is missing or no string")
        if own is not None and own != value:
            raise self.unfit("projector_type", f"is {brief(own)}, and {PROJECTOR}.projector_type {value!r}")
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

    def check_epsilon(self, eps: float) -> None:
        """Raise `ProjectorUnfit` for another epsilon of norms than the one that all towers of a family have."""
        key = "attention.layer_norm_epsilon"
        if self.get(key) is not None and abs(self.number(key) - eps) > TOLERANCE * eps:
            raise self.unfit(key, f"is {brief(self.get(key))}, towers of {self.type!r} are computed with {eps:g}")

    def refuse_others(self) -> None:
        """Raise `ProjectorUnfit` for a key that was not read and may change the mathematics."""
        for name, value in self.keys.others(WITHOUT_EFFECT, NEUTRAL):
            if not name.startswith(OTHER_ENCODERS):
                problem = f"{brief(value)} is not supported with a projector of type {self.type!r}"
                raise ProjectorUnfit(self.path, f"{PROJECTOR}.{name}", problem)

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
