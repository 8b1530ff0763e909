"""What a worker tells the gateway: a closed union, decoded by `protocol.codec.decode_event`."""

from typing import Annotated

from msgspec import Meta, Struct

from protocol.bounds import (
    MAX_PIECE_BYTES,
    MAX_SLOTS,
    MAX_TOKENS,
    MAX_TOP_LOGPROBS,
    MIN_LOGPROB,
    Count,
    Label,
    Milliseconds,
    Name,
    Reason,
    StreamId,
    Text,
    TokenId,
    Tokens,
)
from protocol.errors import ByeReason, ErrorCode
from protocol.request import FinishReason

Slots = Annotated[int, Meta(ge=0, le=MAX_SLOTS)]


class Capabilities(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What a worker can do; what is false here it refuses by name."""

    chat: bool = False
    """The model has a chat template."""
    text: bool = True
    """The model has a tokenizer; without it only token prompts are taken."""
    score: bool = False
    """Reserved: always false, because no command asks for the score of a prompt."""
    resume: bool = True
    """`Submit.resume` is honoured."""
    logprobs: bool = False
    """Log-probabilities of generated tokens are reported to those who ask."""


class Gauges(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The worker's own counts. All but the first three and `retained_tokens` only grow within one incarnation."""

    slots_active: Slots = 0
    queue_depth: Count = 0
    """Sequences that wait for a slot."""
    kv_tokens: Count = 0
    """Tokens held in the KV cache by live sequences."""
    steps: Count = 0
    """Engine steps that finished, failed ones included."""
    steps_failed: Count = 0
    decode_steps: Count = 0
    """Engine steps with at least one decode row."""
    prefill_tokens: Count = 0
    """Prompt tokens (and resumed tokens) whose KV was computed; not those that were taken from another sequence."""
    decode_tokens: Count = 0
    """Tokens sampled, the first of each sequence included."""
    sequences_started: Count = 0
    sequences_completed: Count = 0
    slowest_step_ms: Milliseconds = 0
    """The longest engine step so far."""
    retained_tokens: Count = 0
    """Tokens held in the KV cache for sequences that are over, to be reused."""
    prefix_hits: Count = 0
    """Sequences that began with another one's KV."""
    prefix_tokens: Count = 0
    """Tokens whose KV was taken so."""
    reached: StreamId = 0
    """The last stream whose prompt was made, or could not be. Later ones were not looked at yet."""
    graphs_failed: Count = 0
    """Compiled graphs that could not be had in the background; others do their work, more slowly."""


class Hello(Struct, frozen=True, array_like=True, tag="hello", omit_defaults=True, gc=False):
    """First frame of a worker, before it loads its model."""

    protocol: Count
    worker: Name
    incarnation: StreamId
    """The number that the gateway started it with; 0 of a worker that joins, which learns it by its `Welcome`."""
    pid: Count
    model: Name
    backend: Name
    device: Name
    slots: Slots
    context: Count
    """Tokens of prompt and answer that one slot holds."""
    config_digest: Label = ""
    """Equal digests: same weights, dtype, versions and kind of CPU, hence the same tokens."""
    model_digest: Label = ""
    """Equal digests: the same checkpoint, whatever computes it."""


class Loading(Struct, frozen=True, array_like=True, tag="loading", omit_defaults=True, gc=False):
    """Progress towards `Ready`: `done` of `total` units of `phase`."""

    phase: Label
    done: Count = 0
    total: Count = 0


class Ready(Struct, frozen=True, array_like=True, tag="ready", omit_defaults=True, gc=False):
    """The model is loaded and one step has run: requests are taken from now on."""

    capabilities: Capabilities
    load_ms: Milliseconds = 0
    device: Label = ""
    """The device that was really taken; `Hello` could only say which was asked for."""
    step_ms: Milliseconds = 0
    """What a step with a full budget of prompt tokens may take, from the pace of the warm-up; 0 is not known."""


class Likely(Struct, frozen=True, array_like=True, gc=False):
    """One token and how likely it was, by the model's own logits: before bias, penalties, temperature and filters."""

    token: TokenId
    logprob: Annotated[float, Meta(ge=MIN_LOGPROB, le=0.0)]
    """Natural logarithm; `MIN_LOGPROB` also stands for what is less likely."""
    piece: Annotated[bytes, Meta(max_length=MAX_PIECE_BYTES)]
    """The token's bytes, or a special token's name; maybe half a character."""


class Logprobs(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The log-probabilities of one generated token."""

    drawn: Likely
    top: Annotated[tuple[Likely, ...], Meta(max_length=MAX_TOP_LOGPROBS)] = ()
    """The most likely tokens, likeliest first; equal ones by their ids."""


LogprobsList = Annotated[tuple[Logprobs, ...], Meta(max_length=MAX_TOKENS)]


class Delta(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What one sequence got in one step. The text may lag behind the tokens (a split character, a possible stop)."""

    stream: StreamId
    tokens: Tokens
    text: Text = ""
    logprobs: LogprobsList = ()
    """One for each token, where the request asked for them."""


class Step(Struct, frozen=True, array_like=True, tag="step", omit_defaults=True):
    """All deltas of one engine step."""

    deltas: Annotated[tuple[Delta, ...], Meta(max_length=MAX_SLOTS)]
    gauges: Gauges = Gauges()


class Usage(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Counts of one sequence, and where its time went."""

    prompt_tokens: Count
    completion_tokens: Count
    """Tokens generated, resumed ones and an end-of-sequence token included."""
    queue_ms: Milliseconds = 0
    prefill_ms: Milliseconds = 0
    decode_ms: Milliseconds = 0
    cached_tokens: Count = 0
    """Prompt tokens (and resumed tokens) whose KV was taken from another sequence."""


class Finished(Struct, frozen=True, array_like=True, tag="finished", omit_defaults=True, gc=False):
    """A sequence ended well; its last frame. `text` and `tokens` are what no delta carried yet."""

    stream: StreamId
    reason: FinishReason
    usage: Usage
    tokens: Tokens = ()
    text: Text = ""
    logprobs: LogprobsList = ()
    """One for each of these tokens, where the request asked for them."""


class Failed(Struct, frozen=True, array_like=True, tag="failed", omit_defaults=True, gc=False):
    """A sequence ended with an error; its last frame."""

    stream: StreamId
    code: ErrorCode
    text: Reason
    field: Label = ""
    """The request field at fault, when one is."""


BEAT_S = 1.0
"""A worker that has sent nothing for this long sends a `Beat`."""
SILENT_S = 3 * BEAT_S
"""Three beats missed: a worker so silent may be starved, suspended, or cut off."""


class Beat(Struct, frozen=True, array_like=True, tag="beat", gc=False):
    """Sent when nothing else was for a while: the loop is alive, and `gauges.steps` says whether the engine is."""

    gauges: Gauges


class Bye(Struct, frozen=True, array_like=True, tag="bye", gc=False):
    """Last frame of a worker."""

    reason: ByeReason
    text: Reason


Event = Hello | Loading | Ready | Step | Finished | Failed | Beat | Bye
