"""Typed access to the files of a checkpoint that decide on preprocessing, and to its special tokens."""

from collections.abc import Mapping
from dataclasses import dataclass

from PIL import Image as Pillow

from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.json_files import CheckpointError
from workers.vision.config import VisionConfig

FILTERS = {
    0: Pillow.Resampling.NEAREST,
    1: Pillow.Resampling.LANCZOS,
    2: Pillow.Resampling.BILINEAR,
    3: Pillow.Resampling.BICUBIC,
}
"""Filters by their numbers in preprocessor_config.json."""


@dataclass(frozen=True, slots=True)
class PreparationSettings:
    """The files that decide on the preprocessing of a checkpoint."""

    preprocessor: Fields
    """preprocessor_config.json, or the section of processor_config.json that is in its place."""
    config: Fields
    """config.json."""
    vision: VisionConfig
    tokens: Mapping[int, str]
    """The added tokens of the tokenizer, by id."""

    def image_id(self) -> int:
        """Return the id of the token that stands for a row of an image. Raises `CheckpointError`."""
        for name in ("image_token_id", "image_token_index"):
            if self.config.get(name) is not None:
                return self.config.integer(name)
        raise self.config.error("image_token_id", "is missing, which images need")

    def image_token(self) -> str:
        """Return the text of that token."""
        return self._text(self.image_id(), "image_token_id")

    def token(self, name: str, default: str) -> str:
        """Return the text of a special token by the field of config.json with its id. Raises `CheckpointError`."""
        if self.config.get(name) is None:
            return default
        return self._text(self.config.integer(name), name)

    def require(self, *texts: str) -> None:
        """Raise `CheckpointError` if one of these texts is not a special token of the tokenizer."""
        for text in texts:
            if text not in self.tokens.values():
                file = self.config.file.parent / "tokenizer.json"
                raise CheckpointError(file, "added_tokens", f"{text} is missing, which images need")

    def _text(self, number: int, name: str) -> str:
        if number not in self.tokens:
            raise self.config.error(name, f"{number} is not a special token of the tokenizer")
        return self.tokens[number]

    def filter(self, default: int) -> Pillow.Resampling:
        """Read the filter of resizing. Raises `CheckpointError` for one that is not supported."""
        value = self.preprocessor.get("resample", default)
        if not isinstance(value, int) or value not in FILTERS:
            raise self.preprocessor.error(
                "resample", f"{value!r} is not supported, only {', '.join(map(str, FILTERS))}"
            )
        return FILTERS[value]

    def side(self, name: str, default: int, most: int) -> int:
        """Read a side of images: `size` is a number, or an object with `height` and `width`, which must be equal, or
        with `longest_edge`. Raises `CheckpointError`."""
        value = self.preprocessor.get(name, default)
        if isinstance(value, dict):
            sides = [value[key] for key in ("height", "width", "longest_edge") if value.get(key) is not None]
            value = sides[0] if sides and all(each == sides[0] for each in sides) else value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
            raise self.preprocessor.error(name, f"{value!r} is not one side from 1 to {most} pixels")
        return value
