"""Prompts with images for a runner: tokens, rows of embeddings, positions and ends, as the engine makes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from protocol.request import Sampling
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.runner import IreeRunner
from workers.iree.vision.encoder import IreeVision
from workers.sampling.sample_spec import SampleSpec
from workers.vision.encoder import ImageEncoding
from workers.vision.mrope import axes_of
from workers.vision.patches import ImagePatches

GREEDY = SampleSpec(Sampling(temperature=0.0), 0)


class ImageRows:
    """Rows of embeddings; the number -1 - i stands for row i."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        self.rows, self.width = rows, rows.shape[1]

    def has(self, number: int) -> bool:
        return -len(self.rows) <= number < 0

    def put(self, tokens: Sequence[int], ids: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        for at, token in enumerate(tokens):
            ids[at] = max(token, -1)
            if token < 0:
                out[at, : self.width] = self.rows[-1 - token]


def finish(encoding: ImageEncoding) -> NDArray[np.float32]:
    """Compute an image to its end."""
    try:
        for part in range(encoding.parts):
            assert encoding.advance() is (part == encoding.parts - 1)
        return encoding.rows()
    finally:
        encoding.close()  # before the device is


@dataclass
class Prompted:
    """A prompt whose images are computed."""

    tokens: tuple[int, ...]
    rows: ImageRows
    axes: NDArray[np.int32] | None
    ends: tuple[int, ...] | None
    after: int
    """The position of the first token of the answer."""

    @classmethod
    def of(cls, runner: IreeRunner, ids: Sequence[int], image_token: int, parts: Sequence[ImagePatches]) -> "Prompted":
        vision = runner.vision
        assert isinstance(vision, IreeVision)
        tokens, ends = list(ids), list(range(1, len(ids) + 1))
        found: list[tuple[int, ImagePatches]] = []
        at = taken = 0
        for part in parts:
            at = ids.index(image_token, at)
            found.append((at, part))
            behind = at + part.offsets[-1] + 1
            ends[at:behind] = [behind] * (behind - at)
            for offset in part.offsets:
                assert tokens[at + offset] == image_token
                taken += 1
                tokens[at + offset] = -taken
            at = behind
        assert image_token not in tokens
        rows = np.concatenate([finish(vision.begin(each)) for _, each in found])
        axes, after = axes_of(ids, found) if vision.config.mrope else (None, len(ids))
        both = tuple(ends) if runner.capabilities.bidirectional_images else None
        return cls(tuple(tokens), ImageRows(rows), axes, both, after)

    def followed_by(self, answer: Sequence[int]) -> "Prompted":
        """Return the prompt with a part of its answer behind it, as replay has it."""
        count, axes = len(answer), self.axes
        if axes is not None:
            behind = np.broadcast_to(np.arange(self.after, self.after + count, dtype=np.int32), (3, count))
            axes = np.concatenate([axes, behind], axis=1)
        first = len(self.tokens) + 1
        ends = None if self.ends is None else (*self.ends, *range(first, first + count))
        return Prompted((*self.tokens, *answer), self.rows, axes, ends, self.after + count)

    def chunk(self, slot: int = 0) -> Chunk:
        rows: Any = self.rows  # what the engine passes has these methods as well
        return Chunk(slot, self.tokens, 0, 0, rows, axes=self.axes, ends=self.ends)

    def prefill(
        self, runner: IreeRunner, lengths: Sequence[int], slot: int = 0, beside: "tuple[Prompted, int] | None" = None
    ) -> int | None:
        """Compute the prompt in chunks, the last of which is the rest, in one call with all of a prompt `beside` it, in
        another slot; return the first token of the answer."""
        chunk, at = self.chunk(slot), 0
        for length in lengths:
            runner.prefill([chunk.part(at, length)], [None])
            at += length
        others = [] if beside is None else [beside[0].chunk(beside[1])]
        last = [*others, chunk.part(at, len(self.tokens))]
        return runner.prefill(last, [*(None for _ in others), GREEDY])[-1]

    def kept(self, runner: IreeRunner, slot: int) -> bytes:
        """Return what the runner keeps of the prompt: its rows, and its recurrent state if there is one."""
        state = bytes(runner.read_state(slot)) if runner.capabilities.state_bytes else b""
        return bytes(runner.read_rows(slot, 0, len(self.tokens))) + state

    def answer(self, runner: IreeRunner, token: int | None, count: int, slot: int = 0) -> list[int]:
        """Return `count` greedy tokens, the first of which is given."""
        out: list[int] = []
        for step in range(count):
            assert token is not None
            out.append(token)
            row = DecodeRow(slot, token, len(self.tokens) + step, self.after + step, GREEDY)
            (token,) = runner.decode([row])
        return out

    def last_logits(self, runner: IreeRunner, slot: int = 0) -> NDArray[np.float32]:
        """Compute the prompt and return the logits of its last token."""
        chunk, before = self.chunk(slot), len(self.tokens) - 1
        runner.prefill([chunk.part(0, before)], [None])
        logits: NDArray[np.float32] = runner.logits(replace(chunk.part(before, 1), embeddings=None))[0]
        return logits
