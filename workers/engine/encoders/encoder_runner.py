"""The part of `workers.engine.runner.Runner` that is the same for the encoders of all backends: they have no rows."""

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from workers.engine.runner import AttentionReader, Chunk, DecodeRow, DraftHead, RunnerCapabilities
from workers.sampling.logprobs import RowLogprobs
from workers.sampling.sample_spec import SampleSpec
from workers.vision.encoder import VisionEncoder

CALL_ROWS = 512
"""Tokens of a call of several sequences, rounded up to blocks; a longer sequence is a call of its own."""
CALL_SEQUENCES = 64
"""Sequences of a call, at least, whatever the batch size: they hold no memory between calls."""


class EncoderOnlyError(Exception):
    """Raised by the calls of a runner that an encoder has no use for: it has no next token, and keeps no rows."""

    def __init__(self, call: str) -> None:
        super().__init__(f"{call}: the model is an encoder, which returns hidden states alone")


class EncoderRunner:
    """Implements all of `Runner` but `hidden`, `memory` and `close`."""

    capabilities: RunnerCapabilities
    graphs_failed = 0

    @property
    def draft_head(self) -> DraftHead | None:
        """See `Runner.draft_head`."""
        return None

    @property
    def attention(self) -> AttentionReader | None:
        """See `Runner.attention`."""
        return None

    @property
    def vision(self) -> VisionEncoder | None:
        """See `Runner.vision`."""
        return None

    @property
    def reported_rows(self) -> tuple[int, ...]:
        """None: there are no log-probabilities."""
        return ()

    def fits(self, rows: int) -> bool:
        """Return False: there are no decode steps."""
        return False

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        """Raises `EncoderOnlyError`, as the calls below."""
        self._refuse("prefill")

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        """See `prefill`."""
        self._refuse("decode")

    def logprobs(self, rows: Sequence[int]) -> list[RowLogprobs]:
        """See `prefill`."""
        self._refuse("logprobs")

    def prefill_reported(
        self, chunk: Chunk, spec: SampleSpec | None, targets: Sequence[int]
    ) -> tuple[int | None, list[RowLogprobs]]:
        """See `prefill`."""
        self._refuse("prefill_reported")

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        """See `prefill`."""
        self._refuse("logits")

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `prefill`."""
        self._refuse("copy_prefix")

    def read_rows(self, slot: int, start: int, end: int) -> bytes | memoryview:
        """See `prefill`."""
        self._refuse("read_rows")

    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        """See `prefill`."""
        self._refuse("write_rows")

    def read_state(self, slot: int, length: int | None = None) -> bytes | memoryview:
        """See `prefill`."""
        self._refuse("read_state")

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        """See `prefill`."""
        self._refuse("write_state")

    def reset(self, slot: int) -> None:
        """Check the slot, which holds nothing between calls. Raises `ValueError` for one that does not exist."""
        if not 0 <= slot < self.capabilities.slots:
            raise ValueError(f"slot: {slot} is not one of {self.capabilities.slots}")

    def settle(self) -> None:
        """See `Runner.settle`."""

    def _refuse(self, call: str) -> NoReturn:
        raise EncoderOnlyError(call)


def encoder_slots(requested: int) -> int:
    """Return the sequences that a call may have, for a batch size that was asked for."""
    return max(requested, CALL_SEQUENCES)


def check_sequences(capabilities: RunnerCapabilities, chunks: Sequence[Chunk], token_types: int) -> None:
    """Raise `ValueError` for chunks that are no whole sequences of different slots, or too long, or have segments that
    a model with so many `token_types` has not: without any, all are 0."""
    if len({chunk.slot for chunk in chunks}) != len(chunks):
        raise ValueError("slot: a call takes one sequence a slot")
    for chunk in chunks:
        if not 0 <= chunk.slot < capabilities.slots:
            raise ValueError(f"slot: {chunk.slot} is not one of {capabilities.slots}")
        if not chunk.tokens or min(chunk.tokens) < 0 or max(chunk.tokens) >= capabilities.vocab_size:
            raise ValueError(f"tokens: give at least one, none outside of a vocabulary of {capabilities.vocab_size}")
        if len(chunk.tokens) > capabilities.context:
            raise ValueError(f"tokens: {len(chunk.tokens)}, more than the {capabilities.context} of a sequence")
        if chunk.start or chunk.position or chunk.positions is not None or chunk.axes is not None:
            raise ValueError("start: an encoder takes whole sequences, from position 0")
        types = chunk.token_types
        if types is not None and len(types) != len(chunk.tokens):
            raise ValueError(f"token_types: give {len(chunk.tokens)}, one for each token")
        if types is not None and not (min(types) >= 0 and max(types) < max(1, token_types)):
            raise ValueError(f"token_types: the model has {max(1, token_types)}, from 0 on")
