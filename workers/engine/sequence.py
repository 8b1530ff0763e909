"""State of a sequence in the engine, and what the runner is asked to do for it. Pure."""

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

    While it decodes, its last token has no cache row yet. The token at index i of the whole sequence is sampled with
    position i.
    """

    request: EngineRequest
    tokens: list[int]
    """All tokens so far: prompt, resumed and generated."""
    prefill_length: int
    """Number of prompt and resumed tokens, which are prefilled."""
    chunk_ends: tuple[int, ...]
    """Ends of the prefill chunks when no prefix is reused."""
    max_length: int
    """Length at which the sequence ends."""
    submitted_at: float
    processors: LogitsProcessors | None = None
    cached: CachedRows = field(init=False)
    """Its cache rows."""
    slot: int = -1
    inherited: CachedRows | None = None
    """Rows that were retained in its slot, until its first chunk."""
    reused: int | None = None
    """Number of rows taken from another sequence; None until its first chunk."""
    source: CachedRows | None = None
    """The retained rows of which it has taken copies."""
    last_token: int = -1
    rank: float = 0.0
    """Its place among those that wait or are prefilled, unless that is first in, first out."""
    admitted_at: float | None = None
    first_token_at: float | None = None

    def __post_init__(self) -> None:
        self.cached = CachedRows(self.request.tenant, self.tokens)

    @property
    def reports_prompt(self) -> bool:
        """The log-probabilities of its prompt are reported: it computes all rows itself, in chunks of its own."""
        return self.request.prompt_logprobs and not self.request.resume

    @property
    def completion_tokens(self) -> int:
        """Generated tokens, resumed ones included."""
        return len(self.tokens) - len(self.request.prompt)


@dataclass(frozen=True, slots=True)
class PrefixCopy:
    """Copies the first `length` rows of `source` to `target` and clears the other rows of `target`.

    If both are one slot, only its rows beyond `length` are cleared.
    """

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """One chunk of a prefill call. `sample` is set for the last chunk of a prompt; `copy` must be made before the
    call."""

    sequence: EngineSequence
    chunk: Chunk
    sample: SampleSpec | None
    copy: PrefixCopy | None
    is_first: bool
    """The first chunk of its sequence."""
    targets: tuple[int, ...] | None = None
    """The tokens after the rows of a chunk whose log-probabilities are reported; such a chunk is a call of its own. The
    last row of the prompt has none."""


def sample_spec(sequence: EngineSequence) -> SampleSpec:
    """Return how to sample the next token of a sequence."""
    sampling, position = sequence.request.sampling, len(sequence.tokens)
    return (
        SampleSpec(sampling, position)
        if sequence.processors is None
        else sequence.processors.sample_spec(sampling, position)
    )


def decode_row(sequence: EngineSequence) -> DecodeRow:
    """Return the decode row of a sequence: writes its last token to the next cache row and samples the next token."""
    at = sequence.cached.rows
    return DecodeRow(sequence.slot, sequence.last_token, at, at, sample_spec(sequence))


def finish_without_slot(sequence: EngineSequence) -> FinishReason | None:
    """Return why a sequence ends before it starts: the answer that it resumes is complete, or nothing of it is wanted;
    None if it needs a slot."""
    if not sequence.request.resume:
        return "length" if sequence.request.max_tokens == 0 and not sequence.reports_prompt else None
    if sequence.request.resume[-1] in sequence.request.eos or (
        sequence.processors is not None and sequence.processors.exhausted
    ):
        return "stop"
    return "length" if len(sequence.tokens) >= sequence.max_length else None


def sequence_end(sequence: EngineSequence, reason: FinishReason, now: float) -> SequenceEnd:
    """Return the terminal event of a sequence that ends at `now`, by the clock of `submitted_at`."""
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
