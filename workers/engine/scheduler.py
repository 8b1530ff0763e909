"""Decides which prompt chunks and decode rows run in the next step. Pure: no device, no clock, no text.

The engine carries the decisions out and reports back. One step reserves room for the running sequences, admits others
from the queue to free slots, prefills prompt chunks within the token budget, and then decodes one token for every
sequence whose prompt is complete, including those whose prompt was completed in this step.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, chain, count
from typing import Literal

from protocol.errors import ErrorCode
from protocol.request import FinishReason
from protocol.scheduling import SchedulerPolicy, rank
from workers.engine.chunking import chunk_ends, chunk_lengths
from workers.engine.images.image_row_cache import ImageKey, ImageRowCache
from workers.engine.images.prompt_images import PlacedImage, PromptImages
from workers.engine.kv_slots import SlotTable
from workers.engine.logits_processors import LogitsProcessors
from workers.engine.prefix_match import CachedRows, PrefixPolicy
from workers.engine.request import (
    ConstraintFailed,
    EngineRequest,
    RequestRefused,
    check,
    check_images,
    check_pooled,
)
from workers.engine.runner import RunnerCapabilities
from workers.engine.scheduling.preemption import by_seniority, in_turn, level_of, victims
from workers.engine.scheduling.prefill_calls import PrefillCalls, StepPrompts
from workers.engine.scheduling.slot_queue import SlotQueue
from workers.engine.sequence import EngineSequence, PrefixCopy, ScheduledChunk, finish_without_slot
from workers.engine.slot_allocation import RESERVED_ROWS, SlotAllocator
from workers.engine.sparse.kept_rows import KeptRows, Ranges
from workers.engine.states.prefix_states import PrefixStates


class Scheduler:
    """Owns the queue and the phase of each sequence. `submit` refuses more than `max_queue` waiting.

    Slots and prefill calls are given to the most urgent class, and within it first in, first out, but to those of one
    client by their priority; with the policy `shortest-uncached-first`, in the order of `rank`, so that short prompts
    need not wait for long ones.

    Sequences for which a slot is free do not count as waiting, so `max_queue` 0 still fills the slots. A sequence is
    admitted when a slot is free and the pool of `kv_tokens` cache rows has room for its tokens and `reserved_rows`
    more, which grow as it generates. Retained rows of ended sequences never delay an admission. Where rows or slots are
    lacking, running sequences are preempted (`workers.engine.scheduling.preemption`): they wait again, and continue
    later.
    """

    def __init__(
        self,
        capabilities: RunnerCapabilities,
        *,
        max_queue: int,
        step_tokens: int,
        kv_tokens: int | None = None,
        prefixes: PrefixPolicy | None = None,
        policy: SchedulerPolicy = "fifo",
        reserved_rows: int = RESERVED_ROWS,
        states: PrefixStates | None = None,
        images: ImageRowCache | None = None,
        max_patches: int = 0,
    ) -> None:
        """`kv_tokens` None means the whole context of every slot; `states` are of a model with a state; `images` of one
        with a vision tower, which takes images of up to `max_patches`. Raises `ValueError` for an invalid bound."""
        if reserved_rows < 1:
            raise ValueError(f"reserved_rows must be at least 1, not {reserved_rows}")
        if max_queue < 0:
            raise ValueError(f"max_queue must not be negative, not {max_queue}")
        if step_tokens < 1:
            raise ValueError(f"step_tokens must be at least 1, not {step_tokens}")
        all_rows = capabilities.slots * capabilities.context
        if kv_tokens is not None and kv_tokens < capabilities.context:
            raise ValueError(f"kv_tokens must hold one context of {capabilities.context} tokens, not {kv_tokens}")
        self.slots = SlotTable(capabilities.slots, all_rows if kv_tokens is None else min(kv_tokens, all_rows))
        self.step_tokens = step_tokens
        """Token budget of a step. The engine may change it between steps."""
        self.reported_rows = 1
        """Most rows of a chunk with log-probabilities, if rows are exact. The engine may change it between steps."""
        self._capabilities = capabilities
        self._max_queue = max_queue
        self._ranked = policy == "shortest-uncached-first"
        self._states = states
        self._allocator = SlotAllocator(
            self.slots,
            prefixes or PrefixPolicy(),
            exact=capabilities.exact_rows,
            reserved_rows=reserved_rows,
            states=states,
            bidirectional=capabilities.bidirectional_images,
        )
        self._images = images
        self._max_patches = max_patches
        self._calls = PrefillCalls(capabilities, self._allocator, states, images)
        # One container per phase, so that a cancel is cheap in any phase.
        self._scoring: dict[int, EngineSequence] = {}
        """Those of which it is not known yet what of their prompt is computed."""
        self._waiting = SlotQueue()
        self._prefilling: dict[int, EngineSequence] = {}
        self._reporting: dict[int, EngineSequence] = {}
        """Those of which the log-probabilities of the prompt are reported, until it is complete."""
        self._decoding: dict[int, EngineSequence] = {}
        self._numbers = count()
        self._now = 0.0
        """The time of this step."""

    @property
    def idle(self) -> bool:
        """No sequence waits or runs."""
        return not (self._scoring or self._waiting or self._prefilling or self._reporting or self._decoding)

    @property
    def prompts(self) -> bool:
        """There are prompts to prefill, for which the token budget matters."""
        return bool(self._scoring) or self.prefills

    @property
    def prefills(self) -> bool:
        """There are prompts to prefill now: those that are scored first wait for their scores."""
        return bool(self._waiting or self._prefilling or self._reporting)

    @property
    def reports_alone(self) -> bool | None:
        """Only prompts with log-probabilities have work in this step; None if there are none."""
        return not (self._waiting or self._prefilling or self._decoding) if self._reporting else None

    @property
    def active_rows(self) -> int:
        """Number of sequences that decode."""
        return len(self._decoding)

    @property
    def queued(self) -> int:
        """Number of sequences that wait for a slot."""
        return len(self._waiting) + len(self._scoring)

    def expire(self, now: float) -> list[EngineSequence]:
        """Remove the sequences whose prefill has not begun within the time for which they may wait."""
        held = chain(self._prefilling.values(), self._reporting.values())
        late = [each for each in held if not each.begun and now - each.submitted_at >= each.request.queue_s]
        late += self._waiting.expired(now)
        late += [each for each in self._scoring.values() if now - each.submitted_at >= each.request.queue_s]
        for sequence in late:
            self.remove(sequence.request.stream)
        return late

    def grow(self, now: float) -> int:
        """Reserve room for the decode rows of this step. Slots that are evicted for it are dirty afterwards.

        Returns the number of sequences that were preempted.
        """
        needing = [each for each in self._decoding.values() if each.cached.rows >= each.reserved]
        preempted = 0
        for sequence in by_seniority(needing, now) if needing else ():
            while sequence.slot >= 0 and not self._allocator.grow(sequence):
                self._preempt(by_seniority(chain(self._decoding.values(), self._prefilling.values()), now)[-1], now)
                preempted += 1
        return preempted

    def submit(self, request: EngineRequest, now: float) -> EngineSequence:
        """Queue a sequence and return it.

        Raises `RequestRefused`: OVERLOADED, or INVALID and CONTEXT with the invalid field.
        """
        stream = request.stream
        if stream in self._scoring or stream in self._waiting or any(stream in each for each in self._phases()):
            raise RequestRefused(ErrorCode.INVALID, f"stream {stream} is live already", "stream")
        context = self._capabilities.context
        check(request, self._capabilities.vocab_size, context, self._capabilities.embedding_width)
        if request.images is not None:
            self._check_images(request, request.images)
        check_pooled(request, self._capabilities.hidden_width, bidirectional=self._capabilities.bidirectional)
        request = _within_vocabulary(request, self._capabilities.vocab_size)
        if self.queued >= self._max_queue + self.slots.available:
            raise RequestRefused(ErrorCode.OVERLOADED, f"{self.queued} sequences wait already")
        ends = self._chunk_ends(request, len(request.prompt), len(request.resume))
        tokens = [*request.prompt, *request.resume]
        longest = context if request.max_tokens is None else min(context, len(request.prompt) + request.max_tokens)
        processors = LogitsProcessors.of(request)
        try:
            exhausted = processors is not None and processors.exhausted
        except ConstraintFailed as error:
            raise RequestRefused(ErrorCode.INVALID, str(error), error.field) from error
        if exhausted and not request.resume:
            others = {"bad_words": request.bad_sequences, "min_tokens": request.min_tokens}
            change = " or ".join(["it", *(f"`{name}`" for name, given in others.items() if given)])
            problem = f"the constraint allows no first token: change {change}"
            raise RequestRefused(ErrorCode.INVALID, problem, "constraint")
        number = next(self._numbers)
        sequence = EngineSequence(number, request, tokens, len(tokens), ends, longest, now, processors)
        if request.sparse is not None and not request.sparse.kept:
            self._scoring[stream] = sequence
        else:
            self._wait(sequence, () if request.sparse is None else request.sparse.kept, now)
        return sequence

    def to_score(self) -> list[EngineSequence]:
        """Return the sequences of which it is to be decided what of their prompt is computed, the first one first."""
        return in_turn(self._scoring.values(), self._now) if self._scoring else []

    def scored(self, sequence: EngineSequence, kept: Ranges, now: float) -> None:
        """Let a sequence wait for a slot, for these ranges of its prompt; for all of it if there are none."""
        del self._scoring[sequence.request.stream]
        self._wait(sequence, kept, now)

    def _wait(self, sequence: EngineSequence, kept: Ranges, now: float) -> None:
        if kept:
            prompt = len(sequence.request.prompt)
            sequence.kept = KeptRows.of(kept, prompt)
            sequence.chunk_ends = self._chunk_ends(
                sequence.request, prompt - sequence.left_out, len(sequence.tokens) - prompt
            )
        if self._ranked:
            cost = len(sequence.tokens) - sequence.left_out - self.cached_rows(sequence)
            sequence.rank = rank("shortest-uncached-first", now, cost)
        self._waiting.add(sequence, now)

    def cached_rows(self, sequence: EngineSequence) -> int:
        """Return the rows that a waiting sequence could take from a slot now."""
        return self._allocator.cached_rows(sequence, self._running())

    def admit(self, now: float) -> list[tuple[EngineSequence, FinishReason]]:
        """Move waiting sequences to slots. May be repeated after `make_room` and the reset of dirty slots.

        Returns the sequences that need no slot (`finish_without_slot`); they are removed.
        """
        self._now = now
        ended: list[tuple[EngineSequence, FinishReason]] = []
        while self._waiting:
            sequence = self._waiting.next(now)
            stream, reason = sequence.request.stream, finish_without_slot(sequence)
            if reason is None:
                if not self._allocator.allocate(sequence):
                    break
                self._waiting.take(sequence)
                (self._reporting if sequence.reports_prompt else self._prefilling)[stream] = sequence
            else:
                self._waiting.remove(stream)
                ended.append((sequence, reason))
            sequence.admitted_at = now if sequence.admitted_at is None else sequence.admitted_at
        self._calls.begin_step(self.step_tokens - len(self._decoding))
        return ended

    def make_room(self) -> Literal["evicted", "preempted"] | None:
        """Evict the least recently used slot, or preempt a sequence, if the first waiting sequence can be admitted
        after this and possibly more of both. Slots may be dirty afterwards. Returns None if nothing helps."""
        if not self._waiting:
            return None
        waiting = self._waiting.next(self._now)
        if self._allocator.evict_for(waiting) is not None:
            return "evicted"
        if self.slots.dirty:  # the reset of a slot has failed: no other sequence is preempted for it
            return None
        running = chain(self._decoding.values(), self._prefilling.values())
        chosen = victims(waiting, running, self._now)
        enough = (self._allocator.fits_instead_of(waiting, chosen[:most]) for most in range(1, len(chosen) + 1))
        if not any(enough):
            return None
        self._preempt(chosen[0], self._now)
        return "preempted"

    def _preempt(self, sequence: EngineSequence, now: float) -> None:
        """Return a running sequence to the queue. Its rows are retained, if any are."""
        stream = sequence.request.stream
        del (self._decoding if stream in self._decoding else self._prefilling)[stream]
        self._allocator.release(sequence, failed=sequence.pooled)
        prompt = len(sequence.request.prompt)
        ends = self._chunk_ends(sequence.request, prompt - sequence.left_out, len(sequence.tokens) - prompt)
        sequence.preempted(now, ends)
        self._waiting.add(sequence, now)

    def _chunk_ends(self, request: EngineRequest, prompt: int, after: int) -> tuple[int, ...]:
        """Return the chunk ends of a prompt and the tokens after it. They are split separately, so that the prompt has
        the same chunks as in the first run."""
        sizes = self._capabilities.prefill_chunks
        if self._capabilities.bidirectional:
            return (prompt + after,)
        if request.images is not None and self._capabilities.bidirectional_images:
            ends = chunk_ends(prompt, sizes, request.images.whole)
            again = (1,) * after if self._capabilities.replays_steps else chunk_lengths(after, sizes)
            return (*ends[:-1], *accumulate(again, initial=prompt))
        again = (1,) * after if self._capabilities.replays_steps else chunk_lengths(after, sizes)
        return tuple(accumulate(chunk_lengths(prompt, sizes) + again))

    def _check_images(self, request: EngineRequest, images: PromptImages) -> None:
        if self._images is None:
            text = "the model has no vision tower: leave images out"
            raise RequestRefused(ErrorCode.UNSUPPORTED, text, images.images[0].field)
        longest = self._capabilities.prefill_chunks[-1] if self._capabilities.bidirectional_images else None
        check_images(request, images, self._max_patches, longest)

    def image_wants(self) -> tuple[list[tuple[EngineSequence, PlacedImage]], bool]:
        """Return the sequences that need the rows of an image which are not there, and the first such image of each,
        the first one in turn first; and whether some prompt can be computed further without them."""
        wants: list[tuple[EngineSequence, PlacedImage]] = []
        stopped: set[int] = set()
        if self._images is None:
            return wants, self.prefills
        for sequence in in_turn([each for each in self._prefilling.values() if each.request.images], self._now):
            if sequence.restores_to:
                continue
            start = sequence.cached.rows
            if sequence.reused is None:
                start = self._allocator.find_prefix(sequence, self._running())[1]
            if (image := self._images.missing(sequence.request, start)) is not None:
                wants.append((sequence, image))
                if image.start <= start:
                    stopped.add(sequence.request.stream)
        return wants, bool(self._reporting) or not stopped.issuperset(self._prefilling)

    def needed_images(self) -> set[ImageKey]:
        """Return the images of prompts that are being prefilled, but for those whose rows are written."""
        return {
            (sequence.request.tenant, image.key)
            for sequence in self._prefilling.values()
            if sequence.request.images is not None
            for image in sequence.request.images.images
            if image.end > sequence.cached.rows
        }

    def _running(self) -> Iterator[EngineSequence]:
        """The sequences that have a slot."""
        return chain(self._decoding.values(), self._prefilling.values(), self._reporting.values())

    def find(self, stream: int) -> EngineSequence | None:
        """Return a running sequence; None if it waits or is unknown."""
        return next((phase[stream] for phase in self._phases() if stream in phase), None)

    def _phases(self) -> tuple[dict[int, EngineSequence], ...]:
        """The sequences that have a slot, by what is computed of them."""
        return (self._decoding, self._prefilling, self._reporting)

    def evict_suspects(self, sequence: EngineSequence, *, non_finite: bool) -> None:
        """Evict retained rows that may be the cause of a failure, or corrupted like those of `sequence`: they become
        dirty, and no sequence starts with them."""
        self._allocator.evict_suspects(sequence, self._prefilling.values(), non_finite=non_finite)

    def begin_restores(
        self, stored: Callable[[EngineSequence], int], block: int
    ) -> list[tuple[EngineSequence, PrefixCopy | None]]:
        """Let new sequences take rows from the prefix tier, which has `stored(sequence)` of their first ones, in
        blocks. Returns those that do, with the copies that the runner must make first."""
        begun: list[tuple[EngineSequence, PrefixCopy | None]] = []
        for sequence in self._prefilling.values():
            if sequence.reused is not None or sequence.searched or sequence.kept is not None or sequence.pooled:
                continue
            sequence.searched = True
            if rows := self._whole_blocks(sequence, stored(sequence), block):
                copy = self._allocator.begin_restore(sequence, self._running(), rows, block)
                if sequence.restores_to:
                    begun.append((sequence, copy))
        return begun

    def _whole_blocks(self, sequence: EngineSequence, rows: int, block: int) -> int:
        """Return the rows of whole blocks that split no image which must not be split; 0 if a state would be needed for
        fewer blocks."""
        stored = rows
        while (whole := sequence.whole(rows, bidirectional=self._capabilities.bidirectional_images)) < rows:
            rows = whole // block * block
        return rows if rows == stored or self._states is None else 0

    def restoring(self) -> list[EngineSequence]:
        """Return the sequences that take rows from the prefix tier, in the order in which prompts are prefilled, but of
        each level first the streams that another worker has begun."""
        restoring = [sequence for sequence in self._prefilling.values() if sequence.restores_to]
        ordered = in_turn(restoring, self._now) if restoring else []
        return sorted(ordered, key=lambda sequence: (level_of(sequence, self._now), not sequence.request.resume))

    def restored(self, sequence: EngineSequence, rows: int) -> None:
        """Record rows that were taken from the prefix tier."""
        sequence.cached.rows += rows
        sequence.reused = sequence.cached.rows
        if not sequence.restarted:
            sequence.cached_tokens = sequence.cached.rows
            sequence.stored_tokens += rows
        self.slots.add_rows(sequence.slot, rows)

    def held_rows(self, long_prompt: int) -> Iterator[tuple[int, CachedRows, int]]:
        """Iterate over the slots with rows, of running sequences and retained ones, each with the number of its rows
        that the prefix tier may have: those that a token has proven, and of a prompt of at least `long_prompt` tokens
        all that are computed."""
        for sequence in self._decoding.values():
            if sequence.kept is None:
                yield sequence.slot, sequence.cached, sequence.cached.proven_rows
        for sequence in self._prefilling.values():
            computes = sequence.reused is not None and not sequence.restores_to
            if computes and sequence.prefill_length >= long_prompt and sequence.kept is None and not sequence.pooled:
                yield sequence.slot, sequence.cached, sequence.cached.rows
        for slot, cached in self.slots.retained():
            yield slot, cached, cached.proven_rows

    def next_call(self) -> list[ScheduledChunk]:
        """Return the chunks of the next prefill call of this step (`PrefillCalls`). Empty if there is none."""
        prefilling, reporting = self._prefilling.values(), self._reporting.values()
        return self._calls.next(StepPrompts(prefilling, reporting, self._running, self.reported_rows, self._now))

    def prefilled(self, scheduled: ScheduledChunk) -> None:
        """Record that the rows of a chunk are written."""
        sequence = scheduled.sequence
        sequence.cached.rows += len(scheduled.chunk.tokens)
        sequence.cached.chunk_ends += (sequence.cached.rows,)
        self.slots.add_rows(sequence.slot, len(scheduled.chunk.tokens))
        if scheduled.targets is not None:
            self._proven(sequence)
        if scheduled.sample is not None:
            (self._prefilling if scheduled.targets is None else self._reporting).pop(sequence.request.stream)
            sequence.decodes(self._now)
            self._decoding[sequence.request.stream] = sequence

    def decoding(self) -> list[EngineSequence]:
        """Return the sequences that decode in this step; `decode_row` makes their rows for the runner."""
        return list(self._decoding.values())

    def decoded(self, decoding: list[EngineSequence]) -> None:
        """Record that one row of each of these sequences is written."""
        for sequence in decoding:
            sequence.cached.rows += 1
        self.slots.add_row([sequence.slot for sequence in decoding])

    def accept(self, sequence: EngineSequence, token: int) -> FinishReason | None:
        """Append a sampled token. Returns the reason if the sequence ends with it: end-of-sequence before length.

        A sequence also stops when its constraint allows no further token, if it knows without its mask (see
        `LogitsProcessors.late_end`). Raises what the constraint raises.
        """
        sequence.last_token = token
        sequence.tokens.append(token)
        self._proven(sequence)
        if sequence.processors is not None:
            sequence.processors.accept(token)
            if sequence.processors.ended:
                return "stop"
        if token in sequence.request.eos:
            return "stop"
        return "length" if len(sequence.tokens) >= sequence.max_length else None

    def _proven(self, sequence: EngineSequence) -> None:
        """Note that the logits of the last row are finite."""
        sequence.cached.proven = sequence.cached.rows
        if self._states is not None and sequence.unproven:
            self._states.proven(sequence)

    def start_over(self, sequence: EngineSequence) -> None:
        """Recompute a prompt from row 0, before all others and without rows of other sequences.

        For a sequence whose slot the engine has reset, because its reused rows led to non-finite logits.
        """
        self.slots.clear_rows(sequence.slot)
        sequence.cached.rows, sequence.cached.chunk_ends, sequence.reused = 0, (), 0
        sequence.restored_from = 0
        if not sequence.restarted:
            sequence.cached_tokens = sequence.stored_tokens = 0
        sequence.rank, sequence.waits_since = -math.inf, self._now
        del self._decoding[sequence.request.stream]
        self._prefilling[sequence.request.stream] = sequence

    def remove(self, stream: int, *, failed: bool = False) -> EngineSequence | None:
        """Remove a sequence in any phase. Its slot is retained, or dirty until the runner has reset it.

        The rows of a sequence that `failed` are not retained, nor those of one whose hidden states are pooled. Returns
        None for an unknown sequence.
        """
        waiting = self._waiting.remove(stream) or self._scoring.pop(stream, None)
        if waiting is not None:
            return waiting
        sequence = next((phase.pop(stream) for phase in self._phases() if stream in phase), None)
        if sequence is not None:
            self._allocator.release(sequence, failed=failed or sequence.pooled)
        return sequence


def _within_vocabulary(request: EngineRequest, vocab_size: int) -> EngineRequest:
    """Drop tokens that cannot be sampled: some checkpoints name end-of-sequence tokens, or have a tokenizer with
    tokens, outside of the vocabulary."""
    eos = frozenset(token for token in request.eos if token < vocab_size)
    bad = tuple(sequence for sequence in request.bad_sequences if max(sequence) < vocab_size)
    if len(eos) == len(request.eos) and len(bad) == len(request.bad_sequences):
        return request
    return replace(request, eos=eos, bad_sequences=bad)
