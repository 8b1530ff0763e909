"""PaddleOCR-VL's preprocessing: Qwen's, with patches of one frame, and short sides enlarged to a token."""

from dataclasses import dataclass

from protocol.request import ImageDetail
from workers.vision.preparation.preparer import ImagePlan
from workers.vision.preparation.qwen import QwenPreparer, read_qwen
from workers.vision.preparation.settings import PreparationSettings
from workers.vision.preparation.smart_resize import check_ratio

MIN_PIXELS = 384 * 384
MAX_PIXELS = 1536 * 1536


@dataclass(frozen=True, slots=True)
class PaddleOcrPreparer(QwenPreparer):
    """After `PaddleOCRVLImageProcessor` of transformers."""

    @classmethod
    def of(cls, settings: PreparationSettings) -> "PaddleOcrPreparer":
        """Read the settings. Raises `CheckpointError`."""
        return cls(**read_qwen(settings, MIN_PIXELS, MAX_PIXELS, frames=1))

    def plan(self, width: int, height: int, detail: ImageDetail) -> ImagePlan:
        check_ratio(width, height)
        multiple = self.layout.multiple
        if height < multiple:
            width, height = round(width * multiple / height), multiple
        if width < multiple:
            width, height = multiple, round(height * multiple / width)
        return QwenPreparer.plan(self, width, height, detail)
