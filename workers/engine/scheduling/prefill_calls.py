"""The prefill calls of a step: which chunks of which prompts run together, within the token budget. Pure."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from workers.engine.chunking import chunk_lengths
from workers.engine.images.image_row_cache import ImageRowCache
from workers.engine.runner import RunnerCapabilities
from workers.engine.scheduling.preemption import in_turn
from workers.engine.sequence import EngineSequence, ScheduledChunk, sample_spec
from workers.engine.slot_allocation import SlotAllocator
from workers.engine.states.prefix_states import PrefixStates

MAX_CHUNKS = 32
"""Prompts that are considered for one prefill call."""


@dataclass(frozen=True, slots=True)
class StepPrompts:
    """The prompts of a step, as they are before a call."""

    prefilling: Collection[EngineSequence]
    reporting: Collection[EngineSequence]
    """Those of which the log-probabilities are reported."""
    running: Callable[[], Iterable[EngineSequence]]
    """The sequences that have a slot, whose rows others may copy."""
    reported_rows: int
    """Most rows of a chunk with log-probabilities, if rows are exact."""
    now: float
    """The time of the step."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A prompt that could be in the next prefill call."""

    sequence: EngineSequence
    start: int
    """Rows that it has already, or would take from `source`."""
    source: int
    """The slot to take its first rows from, if this is its first chunk."""
    available: int
    """Tokens behind `start` that can be computed now: up to the first image whose rows are not there."""

    @property
    def rest(self) -> int:
        """Tokens that remain to be prefilled."""
        return self.sequence.prefill_length - self.sequence.left_out - self.start


class PrefillCalls:
    """Owns the token budget that a step has left."""

    def __init__(
        self,
        capabilities: RunnerCapabilities,
        allocator: SlotAllocator,
        states: PrefixStates | None = None,
        images: ImageRowCache | None = None,
    ) -> None:
        """`states` of a model with recurrent state, `images` of one with a vision tower."""
        self._capabilities = capabilities
        self._exact = capabilities.exact_rows
        self._allocator = allocator
        self._states = states
        self._images = images
        self._budget_left = 0
        self._has_call = False
        self._reporting_next = True
        """The next step is that of a chunk with log-probabilities, if other prompts wait as well."""

    def begin_step(self, budget: int) -> None:
        """Begin a step with so many tokens for its prompts."""
        self._budget_left, self._has_call = budget, False

    def next(self, prompts: StepPrompts) -> list[ScheduledChunk]:
        """Return the chunks of the next prefill call of this step, in the order of the policy.

        Empty if the budget is spent or no prompt waits. A step with prompts makes at least one call, however many rows
        decode, so that no prompt starves. A last chunk costs one token more, for the decode row that follows in the
        same step. If rows are exact, several prompts share a call, whose size is that of one prompt as long as all.
        Those whose hidden states are pooled have calls of their own, of which the first prompt in turn decides; of a
        bidirectional model, prompts are not divided.

        A chunk with log-probabilities is the only call of its step, and takes turns with other prompts: these are
        delayed, by a prompt of any length, as by one chunk each step.
        """
        if not self._has_call:  # the first call of the step
            turn = bool(prompts.reporting) and (self._reporting_next or not prompts.prefilling)
            self._reporting_next = not turn
            if turn:
                self._has_call, self._budget_left = True, 0
                return [self._reported_chunk(next(iter(prompts.reporting)), prompts.reported_rows)]
        if not prompts.prefilling:
            return []
        candidates = list(self._candidates(prompts))
        if not candidates:
            return []
        room = self._size(candidates)
        call: list[ScheduledChunk] = []
        for candidate in candidates:
            length = self._length(candidate, min(room, self._budget_left) if call else room)
            if self._capabilities.bidirectional:  # whole, after others if there is room for it
                length = candidate.rest if not call or self._rounded(candidate.rest) <= room else 0
            cost = length + (length == candidate.rest and not candidate.sequence.pooled)
            if length < 1 or (self._has_call and cost > self._budget_left):
                break
            self._budget_left -= cost
            self._has_call = True
            room -= self._rounded(length)
            call.append(self._chunk(candidate, length))
        return call

    def _candidates(self, prompts: StepPrompts) -> Iterator[_Candidate]:
        """Yield the prompts of the next call in order, until they fill the largest size; one if rows are not exact.

        Stops at a prompt that could reuse more rows once a prompt before it is complete: no later one overtakes it.
        """
        rows = 0
        pooled: bool | None = None
        before: list[_Candidate] = []
        for sequence in in_turn(prompts.prefilling, prompts.now):
            if len(before) == MAX_CHUNKS:
                return
            if sequence.restores_to or pooled is (not sequence.pooled):
                continue
            pooled = sequence.pooled
            if pooled:
                source, start, waits = sequence.slot, sequence.cached.rows, False
            elif sequence.reused is None:
                source, start = self._allocator.find_prefix(sequence, prompts.running())
                waits = any(
                    self._allocator.gains_by_waiting(sequence, start, other.sequence, other.start) for other in before
                )
            else:
                source, start, waits = -1, sequence.cached.rows, False
            if waits:
                return
            candidate = _Candidate(sequence, start, source, self._available(sequence, start))
            if candidate.available < 1 or (not self._exact and candidate.available < _to_chunk_end(sequence, start)):
                continue  # others do not wait for the image
            before.append(candidate)
            yield candidate
            rows += self._rounded(candidate.available)
            if not self._exact or rows >= self._capabilities.prefill_chunks[-1]:
                return

    def _size(self, candidates: list[_Candidate]) -> int:
        """Return the rows of the next call: up to the next chunk end, or, if rows are exact, a size that the budget
        allows."""
        if not self._exact:
            (candidate,) = candidates
            return _to_chunk_end(candidate.sequence, candidate.start)
        sizes = self._capabilities.prefill_chunks
        if self._capabilities.bidirectional:
            return sizes[-1]
        size = chunk_lengths(sum(self._rounded(candidate.available) for candidate in candidates), sizes)[0]
        if size > self._budget_left:
            size = max((chunk for chunk in sizes if chunk <= self._budget_left), default=sizes[0])
        least = self._rounded(self._least(candidates[0]))
        return size if size >= least else next(chunk for chunk in sizes if chunk >= least)

    def _least(self, candidate: _Candidate) -> int:
        """Return the fewest tokens of the next chunk: those of an image that is computed in one piece."""
        images = candidate.sequence.request.images
        if images is None or not self._capabilities.bidirectional_images:
            return 1
        return images.through(candidate.start) - candidate.start

    def _length(self, candidate: _Candidate, room: int) -> int:
        """Return the tokens of a chunk of up to `room`, none of which is a part of an image that must not be split."""
        sequence, start = candidate.sequence, candidate.start
        most = length = min(candidate.available, room)
        if length < 1 or not self._exact:
            return length
        if self._states is not None and not sequence.pooled:
            length = self._states.chunk_length(sequence, start, length)
        if not self._capabilities.bidirectional_images:
            return length
        whole = sequence.whole(start + length, bidirectional=True) - start
        least = self._least(candidate)
        return whole or (least if least <= most else 0)

    def _available(self, sequence: EngineSequence, start: int) -> int:
        rest = sequence.prefill_length - sequence.left_out - start
        return rest if self._images is None else self._images.available(sequence.request, start, rest)

    def _chunk(self, candidate: _Candidate, length: int) -> ScheduledChunk:
        sequence, start = candidate.sequence, candidate.start
        is_first = sequence.reused is None
        copy = self._allocator.begin(sequence, candidate.source, start) if is_first else None
        sample = sample_spec(sequence) if length == candidate.rest and not sequence.pooled else None
        chunk = sequence.chunk(start, length, self._images, bidirectional=self._capabilities.bidirectional_images)
        return ScheduledChunk(sequence, chunk, sample, copy, is_first)

    def _reported_chunk(self, sequence: EngineSequence, rows: int) -> ScheduledChunk:
        """Return the next chunk of a prompt with log-probabilities, of at most so many rows if rows are exact."""
        start = sequence.cached.rows
        rest = sequence.prefill_length - start  # it has neither images nor tokens that are left out
        candidate = _Candidate(sequence, start, sequence.slot, rest)
        end = min(rows, candidate.rest) if self._exact else _to_chunk_end(sequence, candidate.start)
        scheduled = self._chunk(candidate, end)
        targets = tuple(sequence.tokens[candidate.start + 1 : candidate.start + end + 1])
        sample = None if sequence.request.max_tokens == 0 else scheduled.sample
        return replace(scheduled, sample=sample, targets=targets)

    def _rounded(self, rows: int) -> int:
        """Round up to the rows that one slot takes in a call."""
        block = self._capabilities.block_rows
        return -(-rows // block) * block


def _to_chunk_end(sequence: EngineSequence, start: int) -> int:
    """Return the number of rows from `start` to the next chunk end."""
    return next(end for end in sequence.chunk_ends if end > start) - start
