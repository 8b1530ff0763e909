"""Computes the rows of images with the vision tower, part by part, between the calls of a step.

One image at a time, for the sequence that has had the fewest so far among the most urgent ones. An image that several
sequences of a tenant wait for is computed once, and one that none waits for any more is dropped at once.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import structlog

from workers.engine.images.image_row_cache import ImageKey, ImageRowCache
from workers.engine.images.patch_restorer import PatchRestorer
from workers.engine.images.prompt_images import PlacedImage
from workers.engine.scheduling.preemption import level_of
from workers.engine.sequence import EngineSequence
from workers.vision.encoder import ImageEncoding, VisionEncoder

ALONE_S = 0.1
"""Time that a step computes images while no sequence decodes: after it, the worker looks for requests and cancels."""
WEIGHT = 0.25
"""Weight of the last decode step in the average of their times."""
Want = tuple[EngineSequence, PlacedImage]
"""A sequence, and the next image that it needs."""


@dataclass(frozen=True, slots=True)
class FailedImage:
    """An image that could not be computed, and the sequences that waited for it."""

    wants: tuple[Want, ...]
    error: Exception


@dataclass(slots=True)
class _Open:
    """The image that is being computed."""

    key: ImageKey
    encoding: ImageEncoding
    stream: int
    """The sequence for which it was begun."""
    streams: set[int]
    """Those that wait for it."""


class ImageEncodings:
    """Owns the encoding that is open. Used by the engine alone; `clock` gives seconds."""

    def __init__(
        self, encoder: VisionEncoder, cache: ImageRowCache, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._encoder = encoder
        self._cache = cache
        self._clock = clock
        self._open: _Open | None = None
        self._restorer = PatchRestorer()
        self._decode_s = 0.0
        """Time of a decode step, a moving average."""
        self._log = structlog.get_logger()
        self.encoded = 0
        """Images that were computed."""
        self.seconds = 0.0
        """Time that the tower took."""

    @property
    def active(self) -> bool:
        """An image is being computed."""
        return self._open is not None

    def record_decode(self, seconds: float) -> None:
        """Record the duration of a decode step."""
        self._decode_s += WEIGHT * (seconds - self._decode_s) if self._decode_s else seconds

    def step(
        self, wants: Sequence[Want], needed: Collection[ImageKey], now: float, *, decoding: bool, others: bool
    ) -> list[FailedImage]:
        """Compute parts of the images that sequences want, in the order of their turns: one part at least, and while
        others decode no more than take about the time of a decode step. `needed` as in `ImageRowCache.trim`; `others`:
        prompts can be computed further meanwhile.

        An image whose patches were released is computed in a later step, when they are prepared again. Returns the
        images that failed.
        """
        self._watch(wants)
        until = self._decode_s if decoding else ALONE_S
        failed: list[FailedImage] = []
        began, longest = self._clock(), 0.0
        rest, lost = self._restored(wants, now, failed)
        if lost and not rest and not decoding and not others:
            self._restorer.wait(ALONE_S)
        while rest:
            part_began = self._clock()
            try:
                done = self._advance(rest, needed, now)
            except Exception as error:  # noqa: BLE001 - any error of a device must end the sequences that wait only
                key = self._key_of_next(rest, now)
                failed.append(_failed(wants, key, error))
                rest = [want for want in rest if _key(want) != key]
                self._close()
            else:
                rest = [want for want in rest if not (done and self._cache.has(_key(want)))]
            ended = self._clock()
            longest = max(longest, ended - part_began)
            self.seconds += ended - part_began
            if ended - began + longest >= until:
                break
        return failed

    def forget(self, stream: int) -> None:
        """Compute nothing more for a sequence that has ended."""
        if self._open is not None:
            self._open.streams.discard(stream)
            if not self._open.streams:
                self._close()

    def close(self) -> None:
        """Drop the image that is being computed, and prepare none any more."""
        self._close()
        self._restorer.close()

    def _watch(self, wants: Sequence[Want]) -> None:
        """Drop the image that is being computed if no sequence wants it now: they were preempted."""
        if self._open is not None:
            self._open.streams = {want[0].request.stream for want in wants if _key(want) == self._open.key}
            if not self._open.streams:
                self._close()

    def _restored(self, wants: Sequence[Want], now: float, failed: list[FailedImage]) -> tuple[list[Want], bool]:
        """Return the wants of images whose patches are there, or that are being computed, and whether there are others:
        the patches of the next one of these are prepared again."""
        ready = {_key(want) for want in wants if want[1].patches is not None}
        if self._open is not None:
            ready.add(self._open.key)
        lost = [want for want in wants if _key(want) not in ready]
        if lost:
            sequence, image = want = _fairest(lost, now)
            try:
                if self._restorer.begin(image.held):
                    self._log.debug("image_prepared_again", stream=sequence.request.stream)
            except Exception as error:  # noqa: BLE001 - any error of preparation must end the sequences that wait only
                failed.append(_failed(wants, _key(want), error))
        return [want for want in wants if _key(want) in ready], bool(lost)

    def _key_of_next(self, wants: Sequence[Want], now: float) -> ImageKey:
        return self._open.key if self._open is not None else _key(_next(wants, now))

    def _advance(self, wants: Sequence[Want], needed: Collection[ImageKey], now: float) -> bool:
        """Compute a part of the open image, or of the next one. Returns whether it is complete."""
        if self._open is None:
            sequence, image = want = _next(wants, now)
            key, patches = _key(want), image.patches
            assert patches is not None, "those without patches were left out"
            streams = {each[0].request.stream for each in wants if _key(each) == key}
            self._open = _Open(key, self._encoder.begin(patches), sequence.request.stream, streams)
            for other, _ in wants:
                other.images_encoded += other.request.stream in streams
            self._log.debug("image_begun", stream=sequence.request.stream, parts=self._open.encoding.parts)
        if not self._open.encoding.advance():
            return False
        rows = self._open.encoding.rows()
        self._cache.add(self._open.key, rows, self._open.stream, needed)
        self.encoded += 1
        for want in wants:
            if _key(want) == self._open.key:
                want[1].release()
        self._close()
        return True

    def _close(self) -> None:
        if self._open is not None:
            opened, self._open = self._open, None
            opened.encoding.close()


def _next(wants: Sequence[Want], now: float) -> Want:
    """Return the next want of which an image is computed, of those that have its patches."""
    return _fairest([want for want in wants if want[1].patches is not None], now)


def _failed(wants: Sequence[Want], key: ImageKey, error: Exception) -> FailedImage:
    return FailedImage(tuple(want for want in wants if _key(want) == key), error)


def _key(want: Want) -> ImageKey:
    sequence, image = want
    return sequence.request.tenant, image.key


def _fairest(wants: Sequence[Want], now: float) -> Want:
    """Return whose image is computed next: of the most urgent sequences the one with the fewest so far, and of these
    the first in turn."""
    return min(wants, key=lambda want: (level_of(want[0], now), want[0].images_encoded))
