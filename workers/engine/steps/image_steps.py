"""Images of a step: parts of those that prompts wait for."""

from workers.engine.images.image_encodings import ImageEncodings
from workers.engine.images.image_row_cache import ImageRowCache
from workers.engine.steps.engine_parts import EngineParts
from workers.engine.steps.outcomes import SequenceOutcomes


class ImageSteps:
    """Takes turns between images and prompts."""

    def __init__(self, parts: EngineParts, outcomes: SequenceOutcomes) -> None:
        self._outcomes = outcomes
        self._scheduler = parts.scheduler
        self._resets = parts.resets
        self._step = parts.step
        self._images_turn = False
        """The last step with images was theirs, or none else had work."""

    def encode(self, images: ImageEncodings, rows: ImageRowCache, now: float) -> bool:
        """Compute parts of the images that prompts wait for, and drop rows of which none has a need. While others
        decode, images and prompts take turns: returns whether this step is that of images alone. The prompt of an image
        that is complete waits for the next one."""
        needed = self._scheduler.needed_images()
        rows.trim(needed)
        if not needed and not images.active:
            return False
        (wants, others), decoding = self._scheduler.image_wants(), self._scheduler.active_rows > 0
        beside = decoding and bool(wants) and others
        self._images_turn = not (beside and self._images_turn)
        if beside and not self._images_turn:
            return False
        failed = images.step(wants, needed, now, decoding=decoding, others=others)
        for image in failed:
            for sequence, placed in image.wants:
                self._step.image_failed(sequence.request.stream, placed.field, image.error)
                self._scheduler.remove(sequence.request.stream)
                self._outcomes.forget(sequence)
        if failed:
            self._resets.reset_dirty()
        return decoding and bool(wants)
