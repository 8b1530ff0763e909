"""The interface of a kind of preprocessing."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from PIL import Image as Pillow

from protocol.request import ImageDetail
from workers.vision.packing import TileGrid
from workers.vision.preparation.patch_layout import PatchLayout
from workers.vision.preparation.pixel_values import PixelValues

Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """The parts and the text that an image becomes, which follow from its sides alone."""

    text: str
    """Replaces the placeholder in the prompt: it has the image token once per token of the parts, in their order."""
    sizes: tuple[Size, ...]
    """Width and height of each part: of the image, or of its tiles."""
    whole: Size = (0, 0)
    """Width and height of the resized image that is split into tiles; (0, 0) for none."""
    packed: TileGrid | None = None
    """The grid of tiles whose rows are packed into one part; None for a part of each."""


@dataclass(frozen=True, slots=True)
class Preparer(ABC):
    """The preprocessing of one checkpoint. Immutable."""

    placeholder: str
    """The text that the chat template writes for an image."""
    image_token: str
    """The text of the token that stands for a row of embeddings."""
    values: PixelValues
    layout: PatchLayout
    filter: Pillow.Resampling
    several_low: ClassVar[bool] = False
    """Images beside others in a chat have low detail, as the model was trained."""

    @abstractmethod
    def plan(self, width: int, height: int, detail: ImageDetail) -> ImagePlan:
        """Plan the parts of an image of these sides. Raises `ImageRefused` for sides that the model cannot take."""

    def tiles(self, picture: Pillow.Image, plan: ImagePlan) -> Iterator[Pillow.Image]:
        """Make the parts of an RGB image, in the order of the plan."""
        yield self.resized(picture, plan.sizes[0])

    def resized(self, picture: Pillow.Image, size: Size) -> Pillow.Image:
        return picture.resize(size, self.filter)

    def run(self, size: Size) -> str:
        """Return the text of the tokens of one part."""
        rows, columns = self.layout.tokens(*size)
        return self.image_token * (rows * columns)
