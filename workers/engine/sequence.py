"""State of a sequence in the engine, and what the runner is asked to do for it. Pure."""

from dataclasses import dataclass, field

from protocol.request import FinishReason
from workers.engine.images.image_row_cache import ImageRowCache
from workers.engine.logits_processors import LogitsProcessors
from workers.engine.pooled.pooled_prompt import Pooler
from workers.engine.prefix_match import CachedRows
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow
from workers.engine.sparse.kept_rows import KeptRows
from workers.engine.speculation.sequence_drafts import SequenceDrafts
from workers.engine.states.sequence_digests import SequenceDigests
from workers.engine.states.snapshot_store import Snapshot
from workers.engine.step_result import SequenceEnd, SequenceStart
from workers.sampling.sample_spec import SampleSpec


@dataclass(slots=True, eq=False)
class EngineSequence:
    """One sequence from `submit` to its end; owned by the scheduler.

    While it decodes, its last token has no cache row yet. The token at index i of the whole sequence is sampled with
    position i.
    """

    number: int
    """Its place in the order of `submit`, or that of one of its client that it has overtaken."""
    request: EngineRequest
    tokens: list[int]
    """All tokens so far: prompt, resumed and generated."""
    prefill_length: int
    """Number of tokens that are prefilled: prompt and resumed ones, and after a preemption all."""
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
    reserved: int = 0
    """Rows that are reserved for it."""
    preemptions: int = 0
    """Times that it was preempted."""
    started: bool = False
    """Its prefill has begun, at least once."""
    restarted: bool = False
    """It was preempted after its prefill had begun."""
    cached_tokens: int = 0
    """Rows that it took from another sequence when it first started, those of the prefix tier included."""
    stored_tokens: int = 0
    """Those of them that came from the prefix tier."""
    created_tokens: int = 0
    """Tokens of a pinned prefix that it has computed and the prefix tier keeps."""
    searched: bool = False
    """The prefix tier was asked for its rows since it got its slot."""
    restored_from: int = 0
    """The number of rows behind which those of the prefix tier begin."""
    restores_to: int = 0
    """The number of rows that it has when those of the tier are restored; 0 if there are none to restore."""
    kept: KeptRows | None = None
    """The tokens of its prompt that are computed; None if all are. Its rows are not shared with other sequences."""
    drafts: SequenceDrafts | None = None
    """None until tokens are drafted for it."""
    digests: SequenceDigests | None = None
    """The names of its prefixes, if its model has a recurrent state."""
    snapshot: Snapshot | None = None
    """The recurrent state that it has started with, unless that was in a slot."""
    unproven: list[Snapshot] = field(default_factory=list)
    """Those that were taken of it since its last token."""
    shared_ends: set[int] = field(default_factory=set)
    """Lengths of prefixes that others have in common with it: a snapshot is taken there."""
    drafts_failed: bool = False
    """A draft has failed: no further ones are made for it."""
    pooler: Pooler | None = None
    """Pools its hidden states, from its first chunk on."""
    vector: bytes = b""
    """The vector of its prompt, in float32, little-endian."""
    waits_since: float | None = field(init=False)
    """The time from which it has waited for its next token, in the queue or in prefill; None while it decodes."""
    images_encoded: int = 0
    """Its images for which the vision tower has worked."""
    _waited_s: float = 0.0

    def __post_init__(self) -> None:
        self.cached = CachedRows(self.request.tenant, self.tokens, stream=self.request.stream, pins=self.request.pins)
        self.waits_since = self.submitted_at

    @property
    def reports_prompt(self) -> bool:
        """The log-probabilities of its prompt are reported: it computes all rows itself, in chunks of its own."""
        return self.request.prompt_logprobs and not self.request.resume and not self.preemptions

    @property
    def begun(self) -> bool:
        """Its prefill has begun, or the encoding of an image of it."""
        return self.started or self.images_encoded > 0

    @property
    def pooled(self) -> bool:
        """Its hidden states are pooled: it computes all rows itself, and they are not retained."""
        return self.request.pooled is not None

    @property
    def computes_all(self) -> bool:
        """It takes no rows of other sequences."""
        return self.pooled or self.reports_prompt

    @property
    def left_out(self) -> int:
        """Tokens of its prompt that have no cache row."""
        return 0 if self.kept is None else self.kept.left_out

    @property
    def shift(self) -> int:
        """The difference between the position of a token behind the prompt and its cache row."""
        images = self.request.images
        return self.left_out if images is None else images.shift(len(self.request.prompt))

    def whole(self, rows: int, *, bidirectional: bool) -> int:
        """Return how many of its first rows another sequence may have in common with it, of up to so many: all, unless
        the tokens of an image attend to each other."""
        images = self.request.images
        return rows if images is None or not bidirectional else images.whole(rows)

    def chunk(
        self, start: int, length: int, rows: ImageRowCache | None = None, *, bidirectional: bool = False
    ) -> Chunk:
        """Return rows of its prefill as a chunk. `rows` has those of its images, and `bidirectional` as in
        `RunnerCapabilities.bidirectional_images`."""
        if (images := self.request.images) is not None:
            assert rows is not None, "a runner without a vision tower takes no images"
            end, prompt = start + length, len(self.request.prompt)
            return Chunk(
                self.slot,
                tuple(self.tokens[start:end]),
                start,
                start,
                rows.rows_of(self.request, start, end),
                axes=images.axes_of(start, end, prompt),
                ends=images.ends_of(start, end) if bidirectional else None,
                adapter=self.request.adapter,
            )
        if self.kept is None:
            tokens = tuple(self.tokens[start : start + length])
            types = None if self.request.pooled is None else self.request.pooled.token_types
            types = None if types is None else types[start : start + length]
            request = self.request
            return Chunk(
                self.slot, tokens, start, start, request.embeddings, token_types=types, adapter=request.adapter
            )
        positions = tuple(self.kept.of_rows(start, start + length))
        tokens = tuple(self.tokens[at] for at in positions)
        return Chunk(self.slot, tokens, start, positions[0], positions=positions, adapter=self.request.adapter)

    def waited_s(self, now: float) -> float:
        """Return the seconds that it has waited for its next token so far, in the queue and in prefill."""
        return self._waited_s + (0.0 if self.waits_since is None else now - self.waits_since)

    def decodes(self, now: float) -> None:
        """Note that its prompt is complete."""
        self._waited_s, self.waits_since = self.waited_s(now), None

    def preempted(self, now: float, chunk_ends: tuple[int, ...]) -> None:
        """Return to the state before the first chunk, with all tokens as the prompt. Its slot is released."""
        if self.waits_since is None:
            self.waits_since = now
        self.preemptions += 1
        self.restarted = self.started
        self.prefill_length, self.chunk_ends = len(self.tokens), chunk_ends
        self.cached = CachedRows(self.request.tenant, self.tokens, stream=self.request.stream, pins=self.request.pins)
        self.slot, self.reserved = -1, 0
        self.reused = self.inherited = self.source = self.digests = self.snapshot = None
        self.shared_ends.clear()
        self.unproven.clear()
        self.searched, self.restored_from, self.restores_to = False, 0, 0
        self.pooler = None

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
    snapshot: Snapshot | None = None
    """The recurrent state to write to `target`; None if there is none, or the copy takes it along."""


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """One chunk of a prefill call. `sample` is set for the last chunk of a prompt; `copy` must be made before the
    call."""

    sequence: EngineSequence
    chunk: Chunk
    sample: SampleSpec | None
    copy: PrefixCopy | None
    is_first: bool
    """The first chunk of its sequence since that got its slot."""
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
    position, adapter = at + sequence.shift, sequence.request.adapter
    return DecodeRow(sequence.slot, sequence.last_token, at, position, sample_spec(sequence), adapter)


def finish_without_slot(sequence: EngineSequence) -> FinishReason | None:
    """Return why a sequence ends before it starts: the answer that it resumes is complete, or nothing of it is wanted;
    None if it needs a slot."""
    if sequence.preemptions or sequence.pooled:
        return None
    if not sequence.request.resume:
        return "length" if sequence.request.max_tokens == 0 and not sequence.reports_prompt else None
    if sequence.request.resume[-1] in sequence.request.eos or (
        sequence.processors is not None and sequence.processors.exhausted
    ):
        return "stop"
    return "length" if len(sequence.tokens) >= sequence.max_length else None


def sequence_start(sequence: EngineSequence, now: float) -> SequenceStart:
    """Return the report of a sequence that has its first new token at `now`, by the clock of `submitted_at`."""
    admitted = now if sequence.admitted_at is None else sequence.admitted_at
    return SequenceStart(
        sequence.request.stream,
        admitted - sequence.submitted_at,
        now - admitted,
        sequence.prefill_length,
        sequence.cached_tokens,
        sequence.stored_tokens,
        () if sequence.kept is None else sequence.kept.ranges,
        sequence.created_tokens,
    )


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
        sequence.cached_tokens,
        sequence.created_tokens,
        0 if sequence.kept is None else len(sequence.kept.positions),
        sequence.vector,
    )
