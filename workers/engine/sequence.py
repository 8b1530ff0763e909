"""A sequence on its way through the engine, and what the runner is asked to do for it. Pure."""

from dataclasses import dataclass, field

from protocol.request import FinishReason
from workers.engine.logits_processors import Shaping
from workers.engine.prefix_match import Written
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow
from workers.engine.step_result import SequenceEnd
from workers.sampling.sample_spec import SampleSpec


@dataclass(slots=True, eq=False)
class Live:
    """One sequence from `submit` to its end; owned by the scheduler.

    The last token known has no cache row yet while it decodes. The token at index i of the whole sequence is sampled
    with position i.
    """

    request: EngineRequest
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
    """One chunk to prefill; `sample` is set for the last chunk of a sequence, `copy` is what must be done before."""

    live: Live
    chunk: Chunk
    sample: SampleSpec | None
    copy: Copy | None = None
    begins: bool = False
    """It is the sequence's first."""


def sample_spec(live: Live) -> SampleSpec:
    """How a sequence's next token is sampled."""
    sampling, position = live.request.sampling, len(live.tokens)
    return SampleSpec(sampling, position) if live.shaping is None else live.shaping.sample_spec(sampling, position)


def row(live: Live) -> DecodeRow:
    """The decode row of a sequence: its last token goes to the row after those written, and the next is sampled."""
    at = live.written.rows
    return DecodeRow(live.slot, live.last, at, at, sample_spec(live))


def resumed_end(live: Live) -> FinishReason | None:
    """Why what a sequence resumes had ended already; None when it had not, or when it resumes nothing."""
    if not live.request.resume:
        return None
    if live.request.resume[-1] in live.request.eos or (live.shaping is not None and live.shaping.exhausted):
        return "stop"
    return "length" if len(live.tokens) >= live.limit else None


def ended(live: Live, reason: FinishReason, now: float) -> SequenceEnd:
    """The terminal of a sequence that ends now, by the clock that it was submitted by."""
    admitted = now if live.admitted is None else live.admitted
    first = now if live.first is None else live.first
    return SequenceEnd(
        live.request.stream,
        reason,
        len(live.request.prompt),
        live.completion_tokens,
        admitted - live.submitted,
        first - admitted,
        now - first,
        live.reused or 0,
    )
