"""What runs next. Pure: it decides, the engine acts and reports back; no device, no clock, no text.

One step is: admit from the queue to free slots, prefill prompt chunks as the budget allows, then decode one token for
every sequence whose prompt is complete, those included that became complete in this step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from protocol.errors import ErrorCode
from protocol.request import FinishReason
from workers.request import Request, RequestRefused, check
from workers.runner import Chunk, Draw, Row, RunnerCapabilities
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

    `length` counts the tokens known (prompt, resumed, generated); the last of them has no cache row yet while it
    decodes. The token at index i of the whole sequence is drawn with position i.
    """

    request: Request
    pending: tuple[int, ...]
    """Prompt and resumed tokens, to be prefilled."""
    chunks: tuple[int, ...]
    length: int
    limit: int
    """The length at which it ends."""
    submitted: float
    slot: int = -1
    chunk: int = 0
    written: int = 0
    last: int = -1
    admitted: float | None = None
    first: float | None = None

    @property
    def completion_tokens(self) -> int:
        return self.length - len(self.request.prompt)


@dataclass(frozen=True, slots=True)
class Prefill:
    """One chunk to prefill; `draw` is set for the last chunk of a sequence."""

    live: Live
    chunk: Chunk
    draw: Draw | None


class Scheduler:
    """Queue, slots and phases. The queue is FIFO and bounded: beyond `max_queue` waiting sequences, `submit` refuses.

    Sequences for which a slot is free do not count as waiting, so that `max_queue` 0 still fills the slots.
    """

    def __init__(self, capabilities: RunnerCapabilities, *, max_queue: int, step_tokens: int) -> None:
        if max_queue < 0:
            raise ValueError(f"max_queue must not be negative, not {max_queue}")
        if step_tokens < 1:
            raise ValueError(f"step_tokens must be at least 1, not {step_tokens}")
        self.slots = SlotTable(capabilities.slots)
        self._capabilities = capabilities
        self._max_queue = max_queue
        self._step_tokens = step_tokens
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
    def queued(self) -> int:
        return len(self._waiting)

    def submit(self, request: Request, now: float) -> None:
        """Queue a sequence. Raises `RequestRefused`: OVERLOADED, or INVALID and CONTEXT with the field at fault."""
        stream = request.stream
        if stream in self._waiting or stream in self._prefilling or stream in self._decoding:
            raise RequestRefused(ErrorCode.INVALID, f"stream {stream} is live already", "stream")
        context = self._capabilities.context
        check(request, self._capabilities.vocab_size, context)
        if len(self._waiting) >= self._max_queue + self.slots.free:
            raise RequestRefused(ErrorCode.OVERLOADED, f"{len(self._waiting)} sequences wait already")
        # The prompt is cut as in the first run, then what is resumed: the prompt's rows come out the same.
        ladder = self._capabilities.prefill_chunks
        chunks = cut(len(request.prompt), ladder) + cut(len(request.resume), ladder)
        pending = request.prompt + request.resume
        most = context if request.max_tokens is None else min(context, len(request.prompt) + request.max_tokens)
        self._waiting[stream] = Live(request, pending, chunks, len(pending), most, now)

    def admit(self, now: float) -> list[tuple[Live, FinishReason]]:
        """Begin a step: move waiting sequences to free slots.

        Returns those that need no slot, because what they resume had ended already; they are removed.
        """
        ended: list[tuple[Live, FinishReason]] = []
        while self._waiting:
            stream = next(iter(self._waiting))
            live = self._waiting[stream]
            reason = _resumed_end(live)
            if reason is None:
                slot = self.slots.take(stream)
                if slot is None:
                    break
                live.slot = slot
                self._prefilling[stream] = live
            else:
                ended.append((live, reason))
            live.admitted = now
            del self._waiting[stream]
        self._left = self._step_tokens - len(self._decoding)
        self._chunks_run = 0
        return ended

    def next_chunk(self) -> Prefill | None:
        """The next chunk of this step, oldest prompt first; None when the budget is spent or no prompt waits.

        A step runs at least one chunk when it can, however many rows decode: no prompt starves. A last chunk costs
        one token more, for the decode row that follows in the same step.
        """
        if not self._prefilling:
            return None
        live = next(iter(self._prefilling.values()))
        length = live.chunks[live.chunk]
        last = live.chunk + 1 == len(live.chunks)
        if self._chunks_run and length + last > self._left:
            return None
        self._left -= length + last
        self._chunks_run += 1
        start = live.written
        chunk = Chunk(live.slot, live.pending[start : start + length], start, start)
        return Prefill(live, chunk, Draw(live.request.sampling, live.length) if last else None)

    def prefilled(self, work: Prefill) -> None:
        """The chunk's rows are written."""
        live = work.live
        live.written += len(work.chunk.tokens)
        live.chunk += 1
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
            live.written += 1
        self.slots.wrote_one([live.slot for live in decoding])

    def accept(self, live: Live, token: int) -> FinishReason | None:
        """Append a drawn token; the reason when the sequence ends with it (end-of-sequence before length)."""
        live.last = token
        live.length += 1
        if token in live.request.eos:
            return "stop"
        return "length" if live.length >= live.limit else None

    def remove(self, stream: int) -> Live | None:
        """Take a sequence out at any moment; its slot is released, and free once the runner has reset it.

        Returns None when no such sequence lives.
        """
        waiting = self._waiting.pop(stream, None)
        if waiting is not None:
            return waiting
        live = self._prefilling.pop(stream, None) or self._decoding.pop(stream, None)
        if live is not None:
            self.slots.release(live.slot)
        return live


def row(live: Live) -> Row:
    """The decode row of a sequence: its last token goes to the row after those written, and the next is drawn."""
    return Row(live.slot, live.last, live.written, live.written, Draw(live.request.sampling, live.length))


def _resumed_end(live: Live) -> FinishReason | None:
    """Why what a sequence resumes had ended already; None when it had not, or when it resumes nothing."""
    if not live.request.resume:
        return None
    if live.request.resume[-1] in live.request.eos:
        return "stop"
    return "length" if live.length >= live.limit else None
