"""GLM-V's preprocessing: Qwen's, with bounds that count all frames of a patch, and short sides enlarged to a token."""

from dataclasses import dataclass

from protocol.request import ImageDetail
from workers.vision.preparation.preparer import ImagePlan
from workers.vision.preparation.qwen import LOW_TOKENS, QwenPreparer, read_qwen
from workers.vision.preparation.settings import PreparationSettings
from workers.vision.preparation.smart_resize import check_ratio, smart_resize

MIN_PIXELS = 112 * 112
MAX_PIXELS = 28 * 28 * 15000


@dataclass(frozen=True, slots=True)
class GlmPreparer(QwenPreparer):
    """After `Glm4vImageProcessor` and `Glm46VImageProcessor` of transformers, for images."""

    @classmethod
    def of(cls, settings: PreparationSettings) -> "GlmPreparer":
        """Read the settings. Raises `CheckpointError`."""
        return cls(**read_qwen(settings, MIN_PIXELS, MAX_PIXELS))

    def plan(self, width: int, height: int, detail: ImageDetail) -> ImagePlan:
        check_ratio(width, height)
        multiple, frames = self.layout.multiple, self.layout.frames
        if min(width, height) < multiple:
            scale = max(multiple / height, multiple / width)
            width, height = int(width * scale), int(height * scale)
        most = min(self.most, LOW_TOKENS * multiple**2 * frames) if detail == "low" else self.most
        # Halves of the bounds are exact, so that the roots are those of transformers.
        size = smart_resize(width, height, multiple, min(self.least, most) / frames, most / frames)
        return ImagePlan(self.run(size), (size,))
