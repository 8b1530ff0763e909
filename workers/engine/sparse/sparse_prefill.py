"""Decides what of prompts is computed, one prompt after the other."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from workers.engine.runner import LOOKED_ROWS, AttentionReader, Runner
from workers.engine.sequence import EngineSequence
from workers.engine.sparse.kept_rows import Ranges
from workers.engine.sparse.prompt_scorer import PromptScorer
from workers.engine.sparse.selection import choose, keeps_all


class LentSlots(Protocol):
    """Lends a slot of the draft model's runner, as `DraftModel` does."""

    def lend_slot(self) -> int:
        """Return an empty slot."""

    def take_back(self, slot: int) -> None:
        """Take a slot back and clear it. Raises what the runner raises."""


class SparsePrefill:
    """Scores prompts by the runner of the draft model. Used by the engine's thread, between two steps.

    An error of the draft model ends no request: its prompt is computed whole.
    """

    def __init__(
        self,
        runner: Runner,
        slots: LentSlots,
        pays: Callable[[int], bool] = lambda tokens: True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`pays` returns whether scoring a prompt of so many tokens is cheap enough. Raises `ValueError` for a runner
        that was not loaded with what reads its attention."""
        reader = runner.attention
        if reader is None:
            raise ValueError("runner: its attention cannot be read")
        self._runner = runner
        self._reader: AttentionReader = reader
        self._slots = slots
        self._pays = pays
        self._clock = clock
        self._current: tuple[EngineSequence, PromptScorer] | None = None
        self._log = structlog.get_logger()
        self.prompts = 0
        """Prompts of which a part was left out."""
        self.kept_tokens = 0
        """Tokens of these that were kept."""
        self.left_out_tokens = 0
        """Those that were left out."""
        self.dense = 0
        """Prompts that were computed whole, because they could not be scored, or not cheaply enough."""

    def decided(self, sequence: EngineSequence) -> Ranges | None:
        """Return no ranges for a prompt that is computed whole without being scored, so that it waits for no scores of
        others: nothing of it would be left out, or the draft model cannot compute it, or not cheaply enough. None means
        that it is to be scored."""
        sparse, prompt = sequence.request.sparse, sequence.request.prompt
        assert sparse is not None
        if keeps_all(len(prompt), sparse.keep, sparse.forced):
            return ()  # a prompt like any other: it counts for nothing here
        return None if self._fits(prompt) else self._decided((), prompt)

    def advance(self, sequence: EngineSequence, most: int) -> Ranges | None:
        """Compute some of the scores of a prompt, of which up to `most` tokens. Returns the ranges that are kept once
        that is decided; none for all of the prompt. None means that it is not decided yet."""
        sparse, prompt = sequence.request.sparse, sequence.request.prompt
        assert sparse is not None
        if self._current is not None and self._current[0] is not sequence:
            self.forget()
        try:
            scores = self._scorer(sequence).advance(most)
        except Exception as error:  # noqa: BLE001 - an error of the draft model must not end the stream
            self._log.error("sparse_prefill_failed", stream=sequence.request.stream, exc_info=error)
            self.forget()
            return self._decided((), prompt)
        if scores is None:
            return None
        self.forget()
        return self._decided(choose(scores, sparse.keep, sparse.forced), prompt)

    def next(self, waiting: Sequence[EngineSequence]) -> EngineSequence:
        """Return which prompt to score: the one that is being scored, or the first of those that wait."""
        return waiting[0] if self._current is None or self._current[0] not in waiting else self._current[0]

    def forget(self, sequence: EngineSequence | None = None) -> None:
        """Drop what is computed of the present prompt, or of that of one sequence."""
        if self._current is None or sequence not in (None, self._current[0]):
            return
        (_, scorer), self._current = self._current, None
        try:
            self._slots.take_back(scorer.slot)
        except Exception as error:  # noqa: BLE001 - as in `advance`
            self._log.error("sparse_prefill_failed", stream=-1, exc_info=error)

    def same(self, one: EngineSequence, others: Sequence[EngineSequence]) -> list[EngineSequence]:
        """Return the sequences of which the same is kept as of one: those of its prompt and its tenant."""
        mine = one.request
        return [
            each
            for each in others
            if (each.request.sparse, each.request.tenant) == (mine.sparse, mine.tenant)
            and each.request.prompt == mine.prompt
        ]

    def _scorer(self, sequence: EngineSequence) -> PromptScorer:
        if self._current is None:
            slot = self._slots.lend_slot()
            scorer = PromptScorer(self._runner, self._reader, slot, sequence.request.prompt, self._clock)
            self._current = sequence, scorer
        return self._current[1]

    def _fits(self, prompt: tuple[int, ...]) -> bool:
        """Return whether the draft model can compute a prompt, and is cheap enough for it."""
        own = self._runner.capabilities
        return len(prompt) + LOOKED_ROWS - 1 <= own.context and max(prompt) < own.vocab_size and self._pays(len(prompt))

    def _decided(self, kept: Ranges, prompt: tuple[int, ...]) -> Ranges:
        count = sum(end - start for start, end in kept)
        if kept:
            self.prompts += 1
            self.kept_tokens += count
            self.left_out_tokens += len(prompt) - count
        else:
            self.dense += 1
        return kept
