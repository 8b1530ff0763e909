"""Gemma 4's preprocessing: the largest sides of about the same ratio with a bounded number of tokens."""

import math
from dataclasses import dataclass

from protocol.request import ImageDetail
from workers.vision.image_refused import ImageRefused
from workers.vision.preparation.patch_layout import PatchLayout
from workers.vision.preparation.pixel_values import PixelValues
from workers.vision.preparation.preparer import Plan, Preparer, Size
from workers.vision.preparation.settings import Settings

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
    def of(cls, settings: Settings) -> "Gemma4Preparer":
        """Read the settings. Raises `CheckpointError`."""
        fields, table = settings.preprocessor, settings.vision.table
        assert table is not None  # every tower of the family has one
        patch, merge = fields.integer("patch_size", 16, most=256), fields.integer("pooling_kernel_size", 3, most=16)
        for name, own, other in (
            ("pooling_kernel_size", merge**2, settings.vision.group),
            ("patch_size", 3 * patch**2, settings.vision.patch_values),
        ):
            if own != other:
                raise fields.error(name, "is not that of the tower in config.json")
        budget = fields.integer("max_soft_tokens", 280)
        if budget not in BUDGETS:
            raise fields.error("max_soft_tokens", f"{budget} is not one of {', '.join(map(str, BUDGETS))}")
        fitting = [each for each in BUDGETS if each * merge <= table[0]]
        if budget not in fitting:
            raise fields.error("max_soft_tokens", f"an image of {budget} tokens in a row leaves the table of positions")
        token = settings.image_token()
        return cls(
            placeholder=token,
            image_token=token,
            values=PixelValues.read(fields, NONE, ONE, normalize=False).changed(2.0, -0.5),
            layout=PatchLayout(patch, merge, False),
            filter=settings.filter(BICUBIC),
            begin=settings.token("boi_token_id", "<|image>"),
            end=settings.token("eoi_token_id", "<image|>"),
            budgets=(min(BUDGETS[0], budget), budget, fitting[-1]),
        )

    def plan(self, width: int, height: int, detail: ImageDetail) -> Plan:
        size = self._size(width, height, self.budgets[("low", "auto", "high").index(detail)])
        return Plan(f"{self.begin}{self.run(size)}{self.end}", (size,))

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
