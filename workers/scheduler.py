"""What runs next. Pure: it decides, the engine acts and reports back; no device, no clock, no text.

One step is: admit from the queue to free slots, prefill prompt chunks as the budget allows, then decode one token for
every sequence whose prompt is complete, those included that became complete in this step.

A sequence that is over leaves its rows in its slot until somebody needs the slot or the room. One that begins takes
such a slot as it is, or rows from any slot of its tenant, where its tokens begin like theirs (`workers.prefix`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from protocol.errors import ErrorCode
from protocol.request import FinishReason
from workers.prefix import PrefixPolicy, Written, reusable
from workers.request import Request, RequestRefused, check
from workers.runner import Chunk, Draw, Row, RunnerCapabilities
from workers.shaping import Shaping
from workers.slots import SlotTable

CALL_TOKENS = 32
"""What a prefill call costs besides its tokens, in tokens: every call reads the weights once."""


def cut(length: int, ladder: Sequence[int]) -> tuple[int, ...]:
    """Cut `length` tokens into chunks and return the tokens of each: whole chunks of the ladder, then one for the rest.

    A runner computes the rest in the smallest chunk that covers it, the end of which is padding. So the rest is what
    is cheaper so, with `CALL_TOKENS` for each call, than cut further: neither is a large chunk run for a few tokens,
    nor many small ones where one would do. A function of the arguments alone: another cut is another order of
    floating-point sums, so it must not depend on the batch. A runner that pads needs room for it: the last part may
    end up to `ladder[-1]` rows after the context.

    Raises `ValueError` for a negative length or an empty, unsorted or non-positive ladder.
    """
    if length < 0:
        raise ValueError(f"length must not be negative, not {length}")
    if not ladder or ladder[0] < 1 or any(low >= high for low, high in pairwise(ladder)):
        raise ValueError(f"ladder must rise and be positive, not {tuple(ladder)}")
    whole, rest = divmod(length, ladder[-1])
    return (ladder[-1],) * whole + _cut_rest(rest, ladder)


def _cut_rest(rest: int, ladder: Sequence[int]) -> tuple[int, ...]:
    """The cheaper of covering the rest with one chunk and taking the largest that fits off it first, at every turn."""
    parts: list[int] = []
    covered: list[tuple[int, int]] = []
    while rest:
        covered.append((rest, next(chunk for chunk in ladder if chunk >= rest) + CALL_TOKENS))
        parts.append(next((chunk for chunk in reversed(ladder) if chunk <= rest), rest))
        rest -= parts[-1]
    further = 0
    end = len(parts)
    for turn in reversed(range(len(parts))):
        rest, cost = covered[turn]
        further += parts[turn] + CALL_TOKENS
        if cost <= further or parts[turn] == rest:
            parts[turn], further, end = rest, cost, turn + 1
    return tuple(parts[:end])


@dataclass(slots=True, eq=False)
class Live:
    """One sequence from `submit` to its end; owned by the scheduler.

    The last token known has no cache row yet while it decodes. The token at index i of the whole sequence is drawn
    with position i.
    """

    request: Request
    tokens: list[int]
    """All that are known: prompt, resumed, generated."""
    pending: int
    """Prompt and resumed tokens: those to be prefilled."""
    ends: tuple[int, ...]
    """Where a cold run's chunks end."""
    limit: int
    """The length at which it ends."""
    submitted: float
    shaping: Shaping | None = None
    written: Written = field(init=False)
    """Its cache rows."""
    slot: int = -1
    inherited: Written | None = None
    """What its slot was retained for."""
    reused: int | None = None
    """Rows that it took from another sequence; None until its first chunk."""
    last: int = -1
    admitted: float | None = None
    first: float | None = None

    def __post_init__(self) -> None:
        self.written = Written(self.request.tenant, self.tokens)

    @property
    def completion_tokens(self) -> int:
        return len(self.tokens) - len(self.request.prompt)


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `length` rows of `source` become those of `target`, and the rest of `target` is forgotten.

    Both may be one slot: then the rest is forgotten, and that is all.
    """

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """One chunk to prefill; `draw` is set for the last chunk of a sequence, `copy` is what must be done before."""

    live: Live
    chunk: Chunk
    draw: Draw | None
    copy: Copy | None = None
    begins: bool = False
    """It is the sequence's first."""


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
        self._prefixes = prefixes or PrefixPolicy()
        # One dict per phase, in order of arrival: first-in first-out, and a cancel from anywhere is O(1).
        self._waiting: dict[int, Live] = {}
        self._prefilling: dict[int, Live] = {}
        self._decoding: dict[int, Live] = {}
        self._left = 0
        self._chunks_run = 0

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._prefilling or self._decoding)

    @property
    def active_rows(self) -> int:
        """Sequences that decode."""
        return len(self._decoding)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def submit(self, request: Request, now: float) -> None:
        """Queue a sequence. Raises `RequestRefused`: OVERLOADED, or INVALID and CONTEXT with the field at fault."""
        stream = request.stream
        if stream in self._waiting or stream in self._prefilling or stream in self._decoding:
            raise RequestRefused(ErrorCode.INVALID, f"stream {stream} is live already", "stream")
        context = self._capabilities.context
        check(request, self._capabilities.vocab_size, context)
        request = _with_real_eos(request, self._capabilities.vocab_size)
        if len(self._waiting) >= self._max_queue + self.slots.available:
            raise RequestRefused(ErrorCode.OVERLOADED, f"{len(self._waiting)} sequences wait already")
        # The prompt is cut as in the first run, then what is resumed: the prompt's rows come out the same.
        ladder = self._capabilities.prefill_chunks
        ends = tuple(accumulate(cut(len(request.prompt), ladder) + cut(len(request.resume), ladder)))
        tokens = [*request.prompt, *request.resume]
        most = context if request.max_tokens is None else min(context, len(request.prompt) + request.max_tokens)
        shaping = Shaping.of(request)
        if shaping is not None and shaping.exhausted and not request.resume:
            raise RequestRefused(ErrorCode.INVALID, "the constraint allows no token to begin with", "constraint")
        self._waiting[stream] = Live(request, tokens, len(tokens), ends, most, now, shaping)

    def admit(self, now: float) -> list[tuple[Live, FinishReason]]:
        """Begin a step: move waiting sequences to slots. Repeatable, after what `give_up` named was reset.

        Returns those that need no slot, because what they resume had ended already; they are removed.
        """
        ended: list[tuple[Live, FinishReason]] = []
        while self._waiting:
            stream = next(iter(self._waiting))
            live = self._waiting[stream]
            reason = _resumed_end(live)
            if reason is None:
                if not self._seat(live):
                    break
                self._prefilling[stream] = live
            else:
                ended.append((live, reason))
            live.admitted = now
            del self._waiting[stream]
        self._left = self.step_tokens - len(self._decoding)
        self._chunks_run = 0
        return ended

    def give_up(self) -> int | None:
        """The oldest retained slot, now soiled, when the first waiting sequence can be admitted for it, or for it and
        others. None when nobody waits that could be helped so."""
        slots, oldest = self.slots, self.slots.oldest
        if oldest is None or not self._waiting:
            return None
        need = next(iter(self._waiting.values())).limit
        lacks = not slots.free or slots.room < need
        if not lacks or slots.room + slots.retained_tokens < need:
            return None
        slots.give_up(oldest)
        return oldest

    def forget_retained(self) -> None:
        """Retain nothing of what ended so far: all retained slots are soiled."""
        while self.slots.oldest is not None:
            self.slots.give_up(self.slots.oldest)

    def next_chunk(self) -> Prefill | None:
        """The next chunk of this step, oldest prompt first; None when the budget is spent or no prompt waits.

        A step runs at least one chunk when it can, however many rows decode: no prompt starves. A last chunk costs
        one token more, for the decode row that follows in the same step.
        """
        if not self._prefilling:
            return None
        live = next(iter(self._prefilling.values()))
        begins = live.reused is None
        source, reused = self._source(live) if begins else (-1, 0)
        start = reused if begins else live.written.rows
        length = self._length(live, start)
        last = start + length == live.pending
        if self._chunks_run and length + last > self._left:
            return None
        self._left -= length + last
        self._chunks_run += 1
        copy = self._begin(live, source, reused) if begins else None
        chunk = Chunk(live.slot, tuple(live.tokens[start : start + length]), start, start)
        return Prefill(live, chunk, draw(live) if last else None, copy, begins)

    def prefilled(self, work: Prefill) -> None:
        """The chunk's rows are written."""
        live = work.live
        live.written.rows += len(work.chunk.tokens)
        live.written.ends += (live.written.rows,)
        self.slots.wrote(live.slot, len(work.chunk.tokens))
        if work.draw is not None:
            del self._prefilling[live.request.stream]
            self._decoding[live.request.stream] = live

    def decoding(self) -> list[Live]:
        """The sequences that decode in this step; `row` makes the runner's row of each."""
        return list(self._decoding.values())

    def decoded(self, decoding: list[Live]) -> None:
        """The rows of these sequences are written."""
        for live in decoding:
            live.written.rows += 1
        self.slots.wrote_one([live.slot for live in decoding])

    def accept(self, live: Live, token: int) -> FinishReason | None:
        """Append a drawn token; the reason when the sequence ends with it (end-of-sequence before length).

        A sequence whose constraint allows nothing more has come to its end.
        """
        live.last = token
        live.tokens.append(token)
        if live.shaping is not None:
            live.shaping.accept(token)
            if live.shaping.exhausted:
                return "stop"
        if token in live.request.eos:
            return "stop"
        return "length" if len(live.tokens) >= live.limit else None

    def remove(self, stream: int, *, failed: bool = False) -> Live | None:
        """Take a sequence out at any moment. Its slot is retained, or soiled: free once the runner has reset it.

        Nothing is retained of a sequence that `failed`. Returns None when no such sequence lives.
        """
        waiting = self._waiting.pop(stream, None)
        if waiting is not None:
            return waiting
        live = self._prefilling.pop(stream, None) or self._decoding.pop(stream, None)
        if live is None:
            return None
        if live.reused is None and live.inherited is not None:  # it has touched nothing of what it found
            live.written = live.inherited
            self.slots.wrote(live.slot, live.written.rows)
        if not failed and self._prefixes.enabled and live.written.rows >= self._prefixes.least:
            self._retain(live)
        else:
            self.slots.release(live.slot)
        return live

    def _retain(self, live: Live) -> None:
        """Keep what a sequence leaves, and give up the oldest of what is over the bound."""
        self.slots.retain(live.slot, live.written)
        most = self._prefixes.most
        while most is not None and self.slots.retained_tokens > most and self.slots.oldest is not None:
            self.slots.give_up(self.slots.oldest)

    def _seat(self, live: Live) -> bool:
        """Find a slot for a waiting sequence: a retained one that it can go on in, or a free one."""
        if not self.slots.available:
            return False
        stream, need = live.request.stream, live.limit
        best, length, written = self._best_retained(live)
        if written is not None:
            # Rows that are not shared would be lost to later turns of what they are from, unless they go anyway.
            loses = written.rows - length > self._prefixes.least
            spared = loses and (self.slots.free or best != self.slots.oldest)
            if not spared and self.slots.take_over(best, stream, need):
                live.slot, live.inherited = best, written
                return True
            self.slots.touch(best)
        slot = self.slots.take(stream, need)
        if slot is None:
            return False
        live.slot = slot
        return True

    def _best_retained(self, live: Live) -> tuple[int, int, Written | None]:
        """The retained slot with the longest reusable prefix, of those the one that would lose the fewest rows."""
        best: tuple[int, int, Written | None] = (-1, 0, None)
        for slot, written in self.slots.retained():
            length = self._reusable(live, written)
            if length and (length, -written.rows) > (best[1], -best[2].rows if best[2] else 0):
                best = (slot, length, written)
        return best

    def _reusable(self, live: Live, source: Written) -> int:
        if not self._prefixes.enabled:
            return 0
        wanted = Written(live.request.tenant, live.tokens, 0, live.ends)
        # One token must be computed, for the logits that the first token is drawn from.
        length = reusable(wanted, source, live.pending - 1, exact_rows=self._exact)
        return length if length >= self._prefixes.least else 0

    def _source(self, live: Live) -> tuple[int, int]:
        """Where the first rows of a sequence that begins come from, and how many: its own slot where that is as good
        as any, because rows that are there already need no copy."""
        own = 0 if live.inherited is None else self._reusable(live, live.inherited)
        best = (live.slot, own)
        for slot, written in self._shared(live):
            length = self._reusable(live, written)
            if length >= max(best[1] + self._prefixes.least, 1):
                best = (slot, length)
        return best

    def _shared(self, live: Live) -> Iterator[tuple[int, Written]]:
        yield from self.slots.retained()
        for phase in (self._decoding, self._prefilling):
            for other in phase.values():
                if other is not live and other.written.rows:
                    yield other.slot, other.written

    def _begin(self, live: Live, source: int, length: int) -> Copy | None:
        """Count the rows that a sequence starts with; what must be copied or forgotten for them, if anything."""
        soiled = live.inherited is not None
        live.reused, live.inherited = length, None
        self.slots.begun(live.slot, live.limit)
        live.written.rows = length
        # Exact rows need no cuts, and without them a prefix ends where a chunk of both ended.
        live.written.ends = tuple(end for end in live.ends if end <= length)
        self.slots.wrote(live.slot, length)
        self.slots.touch(source)
        return Copy(source, live.slot, length) if length or soiled else None

    def _length(self, live: Live, start: int) -> int:
        """Tokens of the next chunk from `start` on: a cold run's, or, where rows are exact, what the budget allows."""
        if not self._exact:
            return next(end for end in live.ends if end > start) - start
        ladder = self._capabilities.prefill_chunks
        rest = live.pending - start
        length = cut(rest, ladder)[0]
        if length <= self._left:
            return length
        return min(rest, max((chunk for chunk in ladder if chunk <= self._left), default=ladder[0]))


def draw(live: Live) -> Draw:
    """How a sequence's next token is drawn."""
    sampling, position = live.request.sampling, len(live.tokens)
    return Draw(sampling, position) if live.shaping is None else live.shaping.draw(sampling, position)


def row(live: Live) -> Row:
    """The decode row of a sequence: its last token goes to the row after those written, and the next is drawn."""
    at = live.written.rows
    return Row(live.slot, live.last, at, at, draw(live))


def _with_real_eos(request: Request, vocab_size: int) -> Request:
    """Some checkpoints name end-of-sequence tokens that their model has no row for: it cannot draw or bar them."""
    real = frozenset(token for token in request.eos if token < vocab_size)
    return request if len(real) == len(request.eos) else replace(request, eos=real)


def _resumed_end(live: Live) -> FinishReason | None:
    """Why what a sequence resumes had ended already; None when it had not, or when it resumes nothing."""
    if not live.request.resume:
        return None
    if live.request.resume[-1] in live.request.eos or (live.shaping is not None and live.shaping.exhausted):
        return "stop"
    return "length" if len(live.tokens) >= live.limit else None
