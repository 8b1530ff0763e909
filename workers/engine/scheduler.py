"""What runs next. Pure: it decides, the engine acts and reports back; no device, no clock, no text.

One step is: admit from the queue to free slots, prefill prompt chunks as the budget allows, then decode one token for
every sequence whose prompt is complete, those included that became complete in this step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice

from protocol.errors import ErrorCode
from protocol.request import FinishReason
from workers.engine.chunking import chunk_lengths
from workers.engine.kv_slots import SlotTable
from workers.engine.logits_processors import LogitsProcessors
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest, RequestRefused, check
from workers.engine.runner import Chunk, RunnerCapabilities
from workers.engine.sequence import EngineSequence, ScheduledChunk, resumed_finish, sample_spec
from workers.engine.slot_allocation import SlotAllocator

MAX_CHUNKS = 32
"""Prompts that are looked at for one prefill call."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A prompt that could go on."""

    sequence: EngineSequence
    start: int
    source: int
    """The slot that its first rows come from, where it begins."""

    @property
    def rest(self) -> int:
        return self.sequence.prefill_length - self.start


class Scheduler:
    """Queue, slots and phases. The queue is FIFO and bounded: beyond `max_queue` waiting sequences, `submit` refuses.

    Sequences for which a slot is free do not count as waiting, so that `max_queue` 0 still fills the slots. A sequence
    is admitted when a slot is free and the pool of `kv_tokens` cache rows has room for all that it may come to hold,
    so that nobody runs out of memory midway; what is retained of ended ones never keeps anybody waiting.
    """

    def __init__(
        self,
        capabilities: RunnerCapabilities,
        *,
        max_queue: int,
        step_tokens: int,
        kv_tokens: int | None = None,
        prefixes: PrefixPolicy | None = None,
    ) -> None:
        """`kv_tokens` None is every slot's whole context. Raises `ValueError` for a bound that is none."""
        if max_queue < 0:
            raise ValueError(f"max_queue must not be negative, not {max_queue}")
        if step_tokens < 1:
            raise ValueError(f"step_tokens must be at least 1, not {step_tokens}")
        most = capabilities.slots * capabilities.context
        if kv_tokens is not None and kv_tokens < capabilities.context:
            raise ValueError(f"kv_tokens must hold one context of {capabilities.context} tokens, not {kv_tokens}")
        self.slots = SlotTable(capabilities.slots, most if kv_tokens is None else min(kv_tokens, most))
        self.step_tokens = step_tokens
        """The token budget of a step; whoever measures what steps cost may set it between two."""
        self._capabilities = capabilities
        self._exact = capabilities.exact_rows
        self._max_queue = max_queue
        self._allocator = SlotAllocator(self.slots, prefixes or PrefixPolicy(), exact=self._exact)
        # One dict per phase, in order of arrival: first-in first-out, and a cancel from anywhere is O(1).
        self._waiting: dict[int, EngineSequence] = {}
        self._prefilling: dict[int, EngineSequence] = {}
        self._decoding: dict[int, EngineSequence] = {}
        self._left = 0
        self._begun = False

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._prefilling or self._decoding)

    @property
    def prompts(self) -> bool:
        """There are prompts to compute, for which the token budget matters."""
        return bool(self._waiting or self._prefilling)

    @property
    def active_rows(self) -> int:
        """Sequences that decode."""
        return len(self._decoding)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def submit(self, request: EngineRequest, now: float) -> None:
        """Queue a sequence. Raises `RequestRefused`: OVERLOADED, or INVALID and CONTEXT with the field at fault."""
        stream = request.stream
        if stream in self._waiting or stream in self._prefilling or stream in self._decoding:
            raise RequestRefused(ErrorCode.INVALID, f"stream {stream} is live already", "stream")
        context = self._capabilities.context
        check(request, self._capabilities.vocab_size, context)
        request = _with_real_eos(request, self._capabilities.vocab_size)
        if len(self._waiting) >= self._max_queue + self.slots.available:
            raise RequestRefused(ErrorCode.OVERLOADED, f"{len(self._waiting)} sequences wait already")
        # The prompt is split as in the first run, and then the resumed tokens: the prompt's rows come out the same.
        sizes = self._capabilities.prefill_chunks
        chunk_ends = tuple(
            accumulate(chunk_lengths(len(request.prompt), sizes) + chunk_lengths(len(request.resume), sizes))
        )
        tokens = [*request.prompt, *request.resume]
        most = context if request.max_tokens is None else min(context, len(request.prompt) + request.max_tokens)
        processors = LogitsProcessors.of(request)
        if processors is not None and processors.exhausted and not request.resume:
            raise RequestRefused(ErrorCode.INVALID, "the constraint allows no token to begin with", "constraint")
        self._waiting[stream] = EngineSequence(request, tokens, len(tokens), chunk_ends, most, now, processors)

    def admit(self, now: float) -> list[tuple[EngineSequence, FinishReason]]:
        """Begin a step: move waiting sequences to slots. Repeatable, after what `evict_for_queue` named was reset.

        Returns those that need no slot, because what they resume had ended already; they are removed.
        """
        ended: list[tuple[EngineSequence, FinishReason]] = []
        while self._waiting:
            stream = next(iter(self._waiting))
            sequence = self._waiting[stream]
            reason = resumed_finish(sequence)
            if reason is None:
                if not self._allocator.take(sequence):
                    break
                self._prefilling[stream] = sequence
            else:
                ended.append((sequence, reason))
            sequence.admitted_at = now
            del self._waiting[stream]
        self._left = self.step_tokens - len(self._decoding)
        self._begun = False
        return ended

    def evict_for_queue(self) -> int | None:
        """The oldest retained slot, now soiled, when the first waiting sequence can be admitted for it, or for it and
        others. None when nobody waits that could be helped so."""
        if not self._waiting:
            return None
        return self._allocator.evict_for(next(iter(self._waiting.values())).max_length)

    def evict_all(self) -> None:
        """Retain nothing of what ended so far: all retained slots are soiled, and nobody begins with what was there."""
        self._allocator.evict_all(self._prefilling.values())

    def next_call(self) -> list[ScheduledChunk]:
        """The chunks of the next prefill call of this step, the oldest prompt's first; none when the budget is spent
        or no prompt waits.

        A step makes at least one call when it can, however many rows decode: no prompt starves. A last chunk costs
        one token more, for the decode row that follows in the same step. Where rows are exact, prompts share a call
        that is as large as if they were one.
        """
        if not self._prefilling:
            return []
        candidates = list(self._candidates())
        room = self._size(candidates)
        call: list[ScheduledChunk] = []
        for candidate in candidates:
            length = min(candidate.rest, room, self._left) if call else min(candidate.rest, room)
            cost = length + (length == candidate.rest)
            if length < 1 or (self._begun and cost > self._left):
                break
            self._left -= cost
            self._begun = True
            room -= self._rounded(length)
            call.append(self._chunk(candidate, length))
        return call

    def prefilled(self, scheduled: ScheduledChunk) -> None:
        """The chunk's rows are written."""
        sequence = scheduled.sequence
        sequence.cached.rows += len(scheduled.chunk.tokens)
        sequence.cached.chunk_ends += (sequence.cached.rows,)
        self.slots.add_rows(sequence.slot, len(scheduled.chunk.tokens))
        if scheduled.sample is not None:
            del self._prefilling[sequence.request.stream]
            self._decoding[sequence.request.stream] = sequence

    def decoding(self) -> list[EngineSequence]:
        """The sequences that decode in this step; `decode_row` makes the runner's row of each."""
        return list(self._decoding.values())

    def decoded(self, decoding: list[EngineSequence]) -> None:
        """The rows of these sequences are written."""
        for sequence in decoding:
            sequence.cached.rows += 1
        self.slots.add_row([sequence.slot for sequence in decoding])

    def accept(self, sequence: EngineSequence, token: int) -> FinishReason | None:
        """Append a sampled token; the reason when the sequence ends with it (end-of-sequence before length).

        A sequence whose constraint allows nothing more has come to its end.
        """
        sequence.last_token = token
        sequence.tokens.append(token)
        if sequence.processors is not None:
            sequence.processors.accept(token)
            if sequence.processors.exhausted:
                return "stop"
        if token in sequence.request.eos:
            return "stop"
        return "length" if len(sequence.tokens) >= sequence.max_length else None

    def start_over(self, sequence: EngineSequence) -> None:
        """A sequence whose prompt came to nothing with rows of another one computes it anew, before all others and
        without them. Its slot has been reset; it is asked for no copy any more."""
        self.slots.clear_rows(sequence.slot)
        sequence.cached.rows, sequence.cached.chunk_ends, sequence.reused = 0, (), 0
        del self._decoding[sequence.request.stream]
        self._prefilling = {sequence.request.stream: sequence} | self._prefilling

    def remove(self, stream: int, *, failed: bool = False) -> EngineSequence | None:
        """Take a sequence out at any moment. Its slot is retained, or soiled: free once the runner has reset it.

        Nothing is retained of a sequence that `failed`. Returns None when no such sequence lives.
        """
        waiting = self._waiting.pop(stream, None)
        if waiting is not None:
            return waiting
        sequence = self._prefilling.pop(stream, None) or self._decoding.pop(stream, None)
        if sequence is not None:
            self._allocator.release(sequence, failed=failed)
        return sequence

    def _candidates(self) -> Iterator[_Candidate]:
        """The prompts of the next call, in order, until they fill the largest one; one where rows are not exact.

        One that gains by waiting for one before it ends them, for nobody overtakes it.
        """
        rows = 0
        before: list[EngineSequence] = []
        for sequence in islice(self._prefilling.values(), MAX_CHUNKS):
            if sequence.reused is None:
                others = chain(self._decoding.values(), self._prefilling.values())
                source, start = self._allocator.find_prefix(sequence, others)
                waits = any(self._allocator.gains_by_waiting(sequence, start, other) for other in before)
            else:
                source, start, waits = -1, sequence.cached.rows, False
            before.append(sequence)
            if waits:
                return
            candidate = _Candidate(sequence, start, source)
            yield candidate
            rows += self._rounded(candidate.rest)
            if not self._exact or rows >= self._capabilities.prefill_chunks[-1]:
                return

    def _size(self, candidates: list[_Candidate]) -> int:
        """Rows of the next call: up to the end of a cold run's chunk, or, where rows are exact, what the budget
        allows."""
        if not candidates:
            return 0
        if not self._exact:
            (candidate,) = candidates
            return next(end for end in candidate.sequence.chunk_ends if end > candidate.start) - candidate.start
        sizes = self._capabilities.prefill_chunks
        size = chunk_lengths(sum(self._rounded(candidate.rest) for candidate in candidates), sizes)[0]
        if size <= self._left:
            return size
        return max((chunk for chunk in sizes if chunk <= self._left), default=sizes[0])

    def _chunk(self, candidate: _Candidate, length: int) -> ScheduledChunk:
        sequence, start = candidate.sequence, candidate.start
        is_first = sequence.reused is None
        copy = self._allocator.begin(sequence, candidate.source, start) if is_first else None
        chunk = Chunk(sequence.slot, tuple(sequence.tokens[start : start + length]), start, start)
        return ScheduledChunk(
            sequence, chunk, sample_spec(sequence) if length == candidate.rest else None, copy, is_first
        )

    def _rounded(self, rows: int) -> int:
        """What rows of one slot take of a call."""
        block = self._capabilities.block_rows
        return -(-rows // block) * block


def _with_real_eos(request: EngineRequest, vocab_size: int) -> EngineRequest:
    """Some checkpoints name end-of-sequence tokens that their model has no row for: it cannot sample or ban them."""
    real = frozenset(token for token in request.eos if token < vocab_size)
    return request if len(real) == len(request.eos) else replace(request, eos=real)
