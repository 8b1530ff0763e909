"""Qwen's preprocessing: sides that are multiples of a token's, with a bounded number of pixels."""

from dataclasses import dataclass
from typing import Any

from protocol.request import ImageDetail
from workers.checkpoints.architectures.fields import Fields
from workers.vision.preparation.patch_layout import PatchLayout
from workers.vision.preparation.pixel_values import CLIP_MEAN, CLIP_STD, PixelValues
from workers.vision.preparation.preparer import ImagePlan, Preparer
from workers.vision.preparation.settings import PreparationSettings
from workers.vision.preparation.smart_resize import check_ratio, smart_resize

LOW_TOKENS = 256
"""The most tokens of an image of low detail."""
MIN_PIXELS = 56 * 56
MAX_PIXELS = 28 * 28 * 1280
MOST = 1 << 26
"""Above any real number of pixels of an image."""
BICUBIC = 3


@dataclass(frozen=True, slots=True)
class QwenPreparer(Preparer):
    """After `Qwen2VLImageProcessor` of transformers, for images."""

    least: int
    """Pixels of an image, at least."""
    most: int

    @classmethod
    def of(cls, settings: PreparationSettings) -> "QwenPreparer":
        """Read the settings. Raises `CheckpointError`."""
        return cls(**read_qwen(settings, MIN_PIXELS, MAX_PIXELS))

    def plan(self, width: int, height: int, detail: ImageDetail) -> ImagePlan:
        check_ratio(width, height)
        multiple = self.layout.multiple
        most = min(self.most, LOW_TOKENS * multiple**2) if detail == "low" else self.most
        size = smart_resize(width, height, multiple, min(self.least, most), most)
        return ImagePlan(self.run(size), (size,))


def read_qwen(settings: PreparationSettings, least: int, most: int, frames: int = 2) -> dict[str, Any]:
    """Read the fields of a preparer. `least` and `most` are the defaults of the bounds, and `frames` is that of the
    frames of a patch. Raises `CheckpointError`."""
    fields, vision = settings.preprocessor, settings.config.section("vision_config")
    assert vision is not None  # the tower was read from it
    merge, patch = fields.integer("merge_size", 2, most=16), fields.integer("patch_size", 14, most=256)
    frames = fields.integer("temporal_patch_size", frames, most=16)
    for name, own, other in (
        ("merge_size", merge**2, settings.vision.group),
        ("patch_size", 3 * frames * patch**2, settings.vision.patch_values),
    ):
        if own != other:
            raise fields.error(name, "is not that of the tower in config.json")
    window = 0
    if settings.vision.full_layers is not None:
        window = vision.integer("window_size", 112, most=1 << 14) // merge // patch
        if not window:
            raise vision.error("window_size", f"is less than a token of {merge * patch} pixels")
    token = settings.image_token()
    least, most = _pixels(fields, least, most)
    return {
        "placeholder": token,
        "image_token": token,
        "values": PixelValues.read(fields, CLIP_MEAN, CLIP_STD),
        "layout": PatchLayout(patch, merge, True, frames, window),
        "filter": settings.filter(BICUBIC),
        "least": least,
        "most": most,
    }


def _pixels(fields: Fields, least: int, most: int) -> tuple[int, int]:
    """Read the least and the most pixels of an image, in the fields of newer and of older versions."""
    size = fields.section("size") or fields.without(fields.values)
    bounds = []
    for older, newer, default in (
        ("min_pixels", "shortest_edge", least),
        ("max_pixels", "longest_edge", most),
    ):
        if fields.get(older) is not None:
            bounds.append(fields.integer(older, most=MOST))
        elif size.get(older) is not None:
            bounds.append(size.integer(older, most=MOST))
        else:
            bounds.append(size.integer(newer, default, most=MOST))
    if bounds[0] > bounds[1]:
        raise fields.error("size", f"the least number of pixels, {bounds[0]}, is above the most, {bounds[1]}")
    return bounds[0], bounds[1]
