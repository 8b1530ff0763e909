"""The interface of a vision tower on a device, which the engine calls between steps."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.vision.patches import ImagePatches


class ImageEncoding(Protocol):
    """The computation of one image, in parts of about equal, bounded time. Used only by the runner's thread."""

    @property
    def parts(self) -> int:
        """The number of parts, at least 1."""

    def advance(self) -> bool:
        """Compute the next part, and wait for it. Returns whether it was the last one."""

    def rows(self) -> NDArray[np.float32]:
        """Return the rows of embeddings in the order of the prompt, float32 [tokens, width], after the last part.

        A row is that of the first layer, then what is added to the output of each of the first layers (deep stack).
        Raises `NotFiniteError` if any number is not finite.
        """

    def close(self) -> None:
        """Free the device's memory, at any time. Nothing may be called afterwards."""


class VisionEncoder(Protocol):
    """A vision tower and the projector behind it. Used only by the runner's thread, between two of its calls.

    The rows of an image have the same bits whatever else is computed.
    """

    @property
    def width(self) -> int:
        """Numbers of a row: the hidden size of the language model, times 1 and the layers of the deep stack."""

    @property
    def max_patches(self) -> int:
        """The most patches of one image."""

    def begin(self, image: ImagePatches) -> ImageEncoding:
        """Start the computation of an image. Raises `ValueError` for one that the tower cannot take."""

    def memory(self) -> dict[str, int]:
        """Return bytes by purpose: `vision_weights`, and `vision_buffers` of the computations that are open."""
