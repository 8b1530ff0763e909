"""A sequence on its way through the engine, and what the runner is asked to do for it. Pure."""

from dataclasses import dataclass, field

from protocol.request import FinishReason
from workers.engine.logits_processors import LogitsProcessors
from workers.engine.prefix_match import CachedRows
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow
from workers.engine.step_result import SequenceEnd
from workers.sampling.sample_spec import SampleSpec


@dataclass(slots=True, eq=False)
class EngineSequence:
    """One sequence from `submit` to its end; owned by the scheduler.

    The last token known has no cache row yet while it decodes. The token at index i of the whole sequence is sampled
    with position i.
    """

    request: EngineRequest
    tokens: list[int]
    """All that are known: prompt, resumed, generated."""
    prefill_length: int
    """Prompt and resumed tokens: those to be prefilled."""
    chunk_ends: tuple[int, ...]
    """Where a cold run's chunks end."""
    max_length: int
    """The length at which it ends."""
    submitted_at: float
    processors: LogitsProcessors | None = None
    cached: CachedRows = field(init=False)
    """Its cache rows."""
    slot: int = -1
    inherited: CachedRows | None = None
    """What its slot was retained for."""
    reused: int | None = None
    """Rows that it took from another sequence; None until its first chunk."""
    last_token: int = -1
    admitted_at: float | None = None
    first_token_at: float | None = None

    def __post_init__(self) -> None:
        self.cached = CachedRows(self.request.tenant, self.tokens)

    @property
    def completion_tokens(self) -> int:
        return len(self.tokens) - len(self.request.prompt)


@dataclass(frozen=True, slots=True)
class PrefixCopy:
    """The first `length` rows of `source` become those of `target`, and the rest of `target` is forgotten.

    Both may be one slot: then the rest is forgotten, and that is all.
    """

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """One chunk to prefill; `sample` is set for the last chunk of a sequence, `copy` is what must be done before."""

    sequence: EngineSequence
    chunk: Chunk
    sample: SampleSpec | None
    copy: PrefixCopy | None = None
    is_first: bool = False
    """It is the sequence's first."""


def sample_spec(sequence: EngineSequence) -> SampleSpec:
    """How a sequence's next token is sampled."""
    sampling, position = sequence.request.sampling, len(sequence.tokens)
    return (
        SampleSpec(sampling, position)
        if sequence.processors is None
        else sequence.processors.sample_spec(sampling, position)
    )


def decode_row(sequence: EngineSequence) -> DecodeRow:
    """The decode row of a sequence: its last token goes to the row after those written, and the next is sampled."""
    at = sequence.cached.rows
    return DecodeRow(sequence.slot, sequence.last_token, at, at, sample_spec(sequence))


def resumed_finish(sequence: EngineSequence) -> FinishReason | None:
    """Why what a sequence resumes had ended already; None when it had not, or when it resumes nothing."""
    if not sequence.request.resume:
        return None
    if sequence.request.resume[-1] in sequence.request.eos or (
        sequence.processors is not None and sequence.processors.exhausted
    ):
        return "stop"
    return "length" if len(sequence.tokens) >= sequence.max_length else None


def sequence_end(sequence: EngineSequence, reason: FinishReason, now: float) -> SequenceEnd:
    """The terminal of a sequence that ends now, by the clock that it was submitted by."""
    admitted = now if sequence.admitted_at is None else sequence.admitted_at
    first = now if sequence.first_token_at is None else sequence.first_token_at
    return SequenceEnd(
        sequence.request.stream,
        reason,
        len(sequence.request.prompt),
        sequence.completion_tokens,
        admitted - sequence.submitted_at,
        first - admitted,
        now - first,
        sequence.reused or 0,
    )
