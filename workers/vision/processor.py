"""The preprocessing of one checkpoint's images: from files to patches, and the text that stands for them in prompts."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from PIL import Image as Pillow

from baton_serve import __version__
from protocol.request import Image, ImageDetail
from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.checkpoint import config_digest
from workers.checkpoints.documents import find_document
from workers.checkpoints.gguf.find import MMPROJ_AUTO, gguf_path
from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.gguf.vocabulary import GgufVocabulary
from workers.checkpoints.json_files import MAX_TABLE_BYTES, CheckpointError
from workers.vision.config import VisionConfig
from workers.vision.decode import decode, upright_size
from workers.vision.outline import ImageOutline, row_offsets
from workers.vision.packing import TileGrid
from workers.vision.patches import ImagePatches
from workers.vision.preparation.preparer import ImagePlan, Preparer
from workers.vision.preparation.settings import PreparationSettings
from workers.vision.tower import VisionTower, find_tower

PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image as the model takes it."""

    text: str
    """Replaces the placeholder in the rendered prompt, before it is tokenized; has the text of the image token once per
    token."""
    parts: tuple[ImagePatches, ...]
    """In the order of the runs of the image token in `text`: the image, or its tiles."""


class ImageProcessor:
    """The preprocessing of one checkpoint. Immutable, so that threads may share it; holds no device."""

    def __init__(
        self, config: VisionConfig, preparer: Preparer, image_token: int, digest: str, max_patches: int | None = None
    ) -> None:
        """`digest` is the checkpoint's, `image_token` the id of the token that stands for a row. `max_patches` as in
        `VisionEncoder`."""
        self.config = config
        self.max_patches = max_patches
        self.image_token = image_token
        self._preparer = preparer
        # Another version may prepare, place or compute an image otherwise, and the prefix tier outlives it.
        self._digest = f"{digest} {__version__}".encode()

    @classmethod
    def of(cls, checkpoint: Path, mmproj: str = MMPROJ_AUTO, max_patches: int | None = None) -> "ImageProcessor | None":
        """Read the preprocessing of a checkpoint. None for one without a vision tower that is supported
        (`workers.vision.tower.no_images` says why). `mmproj` as in `find_tower`, `max_patches` as in `VisionEncoder`.

        Raises `CheckpointError` for settings that are not supported, which names the file and the field.
        """
        tower = find_tower(checkpoint, mmproj)
        return None if tower is None else cls.of_tower(tower, max_patches)

    @classmethod
    def of_tower(cls, tower: VisionTower, max_patches: int | None = None) -> "ImageProcessor":
        """Read the preprocessing of a checkpoint with a tower. Raises `CheckpointError`."""
        path, projector = tower.path, tower.projector
        preprocessor = _preprocessor(path) if projector is None else projector.preprocessor
        settings = PreparationSettings(preprocessor, tower.fields, tower.config, _added_tokens(path))
        digests = [config_digest(each) for each in (path, *([] if projector is None else [projector.file.path]))]
        preparer = tower.family.prepare(settings)
        return cls(tower.config, preparer, settings.image_id(), " ".join(digests), max_patches)

    @property
    def placeholder(self) -> str:
        """The text that the chat template writes for one image."""
        return self._preparer.placeholder

    @property
    def image_text(self) -> str:
        """The text of the image token."""
        return self._preparer.image_token

    def among(self, images: tuple[Image, ...], places: int) -> tuple[Image, ...]:
        """Return the images of a chat with `places` of images, as they are prepared beside each other."""
        if places == 1 or not self._preparer.several_low:
            return images
        return tuple(replace(image, detail="low") for image in images)

    def outline(self, image: Image) -> ImageOutline:
        """Return the text and the rows that an image becomes, from its header alone. Raises `ImageRefused`."""
        plan = self._preparer.plan(*upright_size(image), image.detail)
        groups = 0 if plan.packed is None else plan.packed.tiles * plan.packed.side**2
        return ImageOutline(plan.text, self._offsets(plan), groups)

    def tokens_of_size(self, width: int, height: int, detail: ImageDetail = "auto") -> int:
        """Return the number of image tokens of an image of these sides. Raises `ImageRefused`."""
        return sum(map(len, self._offsets(self._preparer.plan(width, height, detail))))

    def _offsets(self, plan: ImagePlan) -> tuple[Sequence[int], ...]:
        layout = self._preparer.layout
        if plan.packed is not None:
            return (range(plan.packed.count),)
        return tuple(row_offsets(*layout.tokens(*size), layout.breaks) for size in plan.sizes)

    def prepare(self, image: Image) -> PreparedImage:
        """Decode and preprocess an image. Raises `ImageRefused` for a file that is broken or over a bound."""
        picture = decode(image)
        plan = self._preparer.plan(*picture.size, image.detail)
        parts = (self._split(tile) for tile in self._preparer.tiles(picture, plan))
        return PreparedImage(plan.text, tuple(parts) if plan.packed is None else (self._joined(plan.packed, parts),))

    def _split(self, tile: Pillow.Image) -> ImagePatches:
        # The key is of the pixels, not the file: the same image in another file has the same rows.
        digest = hashlib.blake2b(self._digest, digest_size=16)
        digest.update(f"{tile.width}x{tile.height} {self.config.family}".encode())
        digest.update(tile.tobytes())
        return self._preparer.layout.split(tile, self._preparer.values, digest.digest())

    def _joined(self, grid: TileGrid, tiles: Iterator[ImagePatches]) -> ImagePatches:
        """Return the tiles as one part, in which each of them attends to itself alone. No two of them are held besides:
        all together may take 100 MB."""
        key = hashlib.blake2b(self._digest, digest_size=16)
        key.update(repr(grid).encode())
        first = next(tiles)
        patches = len(first.values)
        values = np.empty((grid.tiles, *first.values.shape), np.float32)
        for mine, tile in zip(values, chain((first,), tiles), strict=True):
            mine[:] = tile.values
            key.update(tile.key)
        return ImagePatches(
            values.reshape(-1, values.shape[-1]),
            first.grid,
            np.tile(first.places, (grid.tiles, 1)),
            key.digest(),
            windows=np.repeat(np.arange(grid.tiles, dtype=np.int32), patches),
            tokens=(1, grid.count),
            packing=grid.packing(),
        )


def _preprocessor(path: Path) -> Fields:
    """Read the settings of preprocessing: the section of processor_config.json that transformers 5 writes, else
    preprocessor_config.json. Raises `CheckpointError`."""
    newer = find_document(path, PROCESSOR)
    if newer is not None and newer.get("image_processor") is not None:
        section = Fields(path / PROCESSOR, newer).section("image_processor")
        assert section is not None  # it is there
        return section
    values = find_document(path, PREPROCESSOR)
    if values is None:
        raise CheckpointError(
            path / PREPROCESSOR,
            "",
            "there is no such file, which images need: add it, or serve text alone with --no-vision",
        )
    return Fields(path / PREPROCESSOR, values)


def _added_tokens(path: Path) -> dict[int, str]:
    """Read the added tokens of the tokenizer. Raises `CheckpointError`."""
    file = gguf_path(path)
    if file is not None:  # whose tokenizer.json takes long to make
        vocabulary = GgufVocabulary.of(GgufFile.open(file))
        return {} if vocabulary is None else {each["id"]: each["content"] for each in vocabulary.added()}
    document = find_document(path, TOKENIZER, MAX_TABLE_BYTES) or {}
    added = document.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(each, dict) for each in added):
        raise CheckpointError(path / TOKENIZER, "added_tokens", "is not a list of objects")
    found = {each.get("id"): each.get("content") for each in added}
    return {number: text for number, text in found.items() if isinstance(number, int) and isinstance(text, str)}
