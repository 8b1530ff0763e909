"""Rescaling and normalization of pixels, by tables."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.fields import MAX_NUMBER, Fields, brief

HALF = (0.5, 0.5, 0.5)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
Three = tuple[float, float, float]


@dataclass(frozen=True, slots=True, eq=False)
class PixelValues:
    """The number of each of the 256 values of a pixel, in each channel."""

    table: NDArray[np.float32]
    """[3, 256]."""

    @classmethod
    def read(
        cls, fields: Fields, mean: Three, std: Three, *, normalize: bool = True, resizes: bool = False
    ) -> "PixelValues":
        """Read `do_rescale`, `rescale_factor`, `do_normalize`, `image_mean` and `image_std` with a family's defaults.

        The arithmetic is transformers': the product in float64, the rest in float32. A family that `resizes` does so
        whatever `do_resize` says. Raises `CheckpointError`.
        """
        for name in ("do_resize", "do_rescale"):
            if not fields.flag(name, True) and not (resizes and name == "do_resize"):
                raise fields.error(name, "false is not supported for images")
        factor = fields.number("rescale_factor", 1 / 255)
        values = (np.arange(256, dtype=np.float64) * factor).astype(np.float32)
        table = np.repeat(values[None], 3, axis=0)
        if fields.flag("do_normalize", normalize):
            means, deviations = (
                np.array(_three(fields, name, default), np.float32)[:, None]
                for name, default in (("image_mean", mean), ("image_std", std))
            )
            if not deviations.all():
                raise fields.error("image_std", "is 0 for a channel")
            table = (table - means) / deviations
        return cls(table)

    def changed(self, factor: float, offset: float) -> "PixelValues":
        """Return values with a further offset, and then a factor, in float32: those that a model applies itself."""
        return PixelValues((np.float32(factor) * (self.table + np.float32(offset))).astype(np.float32))


def _three(fields: Fields, name: str, default: Three) -> tuple[float, ...]:
    value = fields.get(name, list(default))
    valid = isinstance(value, list) and all(isinstance(each, int | float) and abs(each) < MAX_NUMBER for each in value)
    if not valid or len(value) != 3:
        raise fields.error(name, f"{brief(value)} is not a list of three numbers")
    return tuple(map(float, value))
