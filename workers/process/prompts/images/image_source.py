"""The interface of the image processor of a model, as prompts are built with it."""

from typing import Protocol

from protocol.request import Image
from workers.vision.config import VisionConfig
from workers.vision.outline import ImageOutline
from workers.vision.patches import ImagePatches


class PreparedSource(Protocol):
    """An image as a vision tower gets it."""

    @property
    def text(self) -> str:
        """The text that replaces the placeholder in the rendered prompt, with that of the image token once for each
        row."""

    @property
    def parts(self) -> tuple[ImagePatches, ...]:
        """The patches, in the order of the runs of the image token: those of each tile, if the image has tiles."""


class ImageSource(Protocol):
    """Prepares images for one model. It holds no device and is never changed: several threads may use it."""

    @property
    def placeholder(self) -> str:
        """The text that the chat template writes for an image."""

    @property
    def image_token(self) -> int:
        """The token whose runs stand for rows."""

    @property
    def config(self) -> VisionConfig:
        """The vision tower."""

    @property
    def max_patches(self) -> int | None:
        """The most patches of an image, or of a tile of one, that the tower takes; None for no bound."""

    def among(self, images: tuple[Image, ...], places: int) -> tuple[Image, ...]:
        """Return the images of a chat with `places` of images, as they are prepared beside each other."""

    def outline(self, image: Image) -> ImageOutline:
        """Return the text and the rows that an image becomes, without decoding its pixels. Raises `ImageRefused`."""

    def prepare(self, image: Image) -> PreparedSource:
        """Decode and preprocess an image. Raises `ImageRefused` for a broken one, or one out of bounds."""
