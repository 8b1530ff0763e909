"""Gemma 4's preprocessing: the largest sides of about the same ratio with a bounded number of tokens."""

import math
from dataclasses import dataclass

from protocol.request import ImageDetail
from workers.checkpoints.architectures.fields import Fields
from workers.vision.image_refused import ImageRefused
from workers.vision.preparation.patch_layout import PatchLayout
from workers.vision.preparation.pixel_values import PixelValues
from workers.vision.preparation.preparer import ImagePlan, Preparer, Size
from workers.vision.preparation.settings import PreparationSettings

BUDGETS = (70, 140, 280, 560, 1120)
"""The tokens of an image that the model was trained for, at most."""
BICUBIC = 3
NONE = (0.0, 0.0, 0.0)
ONE = (1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Gemma4Preparer(Preparer):
    """After `Gemma4ImageProcessor` and `Gemma4Processor` of transformers."""

    begin: str
    end: str
    budgets: tuple[int, int, int]
    """Tokens of an image of low, of automatic and of high detail."""

    @classmethod
    def of(cls, settings: PreparationSettings) -> "Gemma4Preparer":
        """Read the settings of a model with a tower. Raises `CheckpointError`."""
        fields = settings.preprocessor
        patch, merge = _sides(fields)
        for name, own, other in (
            ("pooling_kernel_size", merge**2, settings.vision.group),
            ("patch_size", 3 * patch**2, settings.vision.patch_values),
        ):
            if own != other:
                raise fields.error(name, "is not that of the tower in config.json")
        values = PixelValues.read(fields, NONE, ONE, normalize=False).changed(2.0, -0.5)
        return cls._of(settings, values, PatchLayout(patch, merge, False))

    @classmethod
    def unified(cls, settings: PreparationSettings) -> "Gemma4Preparer":
        """Read the settings of a model without a tower, whose patches are as large as a token. After
        `Gemma4UnifiedImageProcessor` of transformers. Raises `CheckpointError`."""
        fields = settings.preprocessor
        patch, merge = _sides(fields)
        if 3 * (patch * merge) ** 2 != settings.vision.patch_values:
            raise fields.error("patch_size", "and pooling_kernel_size are not those in config.json")
        values = PixelValues.read(fields, NONE, ONE, normalize=False)
        return cls._of(settings, values, PatchLayout(patch * merge, 1, False))

    @classmethod
    def _of(cls, settings: PreparationSettings, values: PixelValues, layout: PatchLayout) -> "Gemma4Preparer":
        fields, table = settings.preprocessor, settings.vision.table
        assert table is not None  # every model of the family has one
        budget = fields.integer("max_soft_tokens", 280)
        if budget not in BUDGETS:
            raise fields.error("max_soft_tokens", f"{budget} is not one of {', '.join(map(str, BUDGETS))}")
        fitting = [each for each in BUDGETS if each * layout.merge <= table[0]]
        if budget not in fitting:
            raise fields.error("max_soft_tokens", f"an image of {budget} tokens in a row leaves the table of positions")
        token = settings.image_token()
        return cls(
            placeholder=token,
            image_token=token,
            values=values,
            layout=layout,
            filter=settings.filter(BICUBIC),
            begin=settings.token("boi_token_id", "<|image>"),
            end=settings.token("eoi_token_id", "<image|>"),
            budgets=(min(BUDGETS[0], budget), budget, fitting[-1]),
        )

    def plan(self, width: int, height: int, detail: ImageDetail) -> ImagePlan:
        size = self._size(width, height, self.budgets[("low", "auto", "high").index(detail)])
        return ImagePlan(f"{self.begin}{self.run(size)}{self.end}", (size,))

    def _size(self, width: int, height: int, tokens: int) -> Size:
        """Return the sides of an image with at most so many tokens. After `get_aspect_ratio_preserving_size` of
        transformers."""
        multiple = self.layout.multiple
        factor = math.sqrt(tokens * multiple**2 / (width * height))
        wide, high = (math.floor(factor * side / multiple) * multiple for side in (width, height))
        if not wide and not high:
            raise ImageRefused(
                f"{width} x {height} pixels: the sides round to 0 of the model's patches: crop the image"
            )
        if not high:
            return min(width // height, tokens) * multiple, multiple
        if not wide:
            return multiple, min(height // width, tokens) * multiple
        return wide, high


def _sides(fields: Fields) -> tuple[int, int]:
    """Read the pixels of a side of a patch, and the patches of a side of a token."""
    return fields.integer("patch_size", 16, most=256), fields.integer("pooling_kernel_size", 3, most=16)
