"""Events from a worker to the gateway: a closed union, decoded by `protocol.codec.decode_event`."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from protocol.bounds import (
    MAX_ADAPTERS,
    MAX_COUNT,
    MAX_GATEWAYS,
    MAX_LABELS,
    MAX_PIECE_BYTES,
    MAX_POOLING_PROMPTS,
    MAX_PREFIX_DIGESTS,
    MAX_PROMPT_PART,
    MAX_SEGMENTS,
    MAX_SLOTS,
    MAX_TOKENS,
    MAX_TOP_LOGPROBS,
    MIN_LOGPROB,
    Count,
    Label,
    Milliseconds,
    Name,
    RangeBounds,
    Reason,
    RowBytes,
    RowsDigest,
    RowTokens,
    Stop,
    StreamId,
    Text,
    TokenId,
    Tokens,
    VectorBytes,
)
from protocol.errors import ByeReason, ErrorCode
from protocol.request import FinishReason

Slots = Annotated[int, Meta(ge=0, le=MAX_SLOTS)]
Phases = Literal["both", "prefill", "decode"]
"""The phases of requests that a worker is there for, as its `--role` says. It can compute both."""


class Capabilities(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Features of a worker. It refuses requests for missing ones with an error that names the feature."""

    chat: bool = False
    """The model has a chat template."""
    text: bool = True
    """The model has a tokenizer; without it prompts must be token ids."""
    prompt_logprobs: bool = False
    """`Submit.prompt_logprobs` is honoured."""
    resume: bool = True
    """`Submit.resume` is honoured."""
    logprobs: bool = False
    """Log-probabilities of generated tokens are available."""
    grammar: bool = False
    """`Submit.grammar` is honoured."""
    tools: bool = False
    """The model's notation of tool calls is known: `ChatInput.parse_tools` is honoured."""
    reasoning: bool = False
    """The model's notation of reasoning is known: `ChatInput.parse_reasoning` and `Limits.reasoning_tokens` are
    honoured."""
    infill: bool = False
    """The model's fill-in-the-middle tokens are known: `InfillInput` is accepted."""
    embedding_width: Count = 0
    """The hidden size of the model: rows of so many numbers are accepted in `EmbeddedInput`. 0 accepts none."""
    mtp: bool = False
    """The model's own head for multi-token prediction drafts tokens."""
    images: bool = False
    """The model has a vision tower: `ChatInput.images` are accepted."""
    generates: bool = True
    """The model generates tokens. One that does not, an encoder, takes requests with `Submit.pooled` alone."""
    vector_width: Count = 0
    """The numbers of an embedding; 0 if the model makes none."""
    pooling_prompts: Annotated[tuple[Label, ...], Meta(max_length=MAX_POOLING_PROMPTS)] = ()
    """The names of the prompts that `Pooled.prompt` may name."""
    labels: Count = 0
    """The labels of the model's classifier, which gives each a score; 0 if it has none."""
    pairs: bool = False
    """The model compares texts: `PairInput` is accepted for scores."""
    decoder_scores: bool = False
    """Scores come from the last token of a decoder, otherwise from an encoder."""
    label_names: Annotated[tuple[Label, ...], Meta(max_length=MAX_LABELS)] = ()
    """The names of the labels, of a model that classifies single texts: `Pooled.probabilities` is honoured."""


class Gauges(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Counts of the worker. All but the first three, `retained_tokens`, `memory_bytes`, `others`, `stored_bytes`,
    `state_cache_bytes` and `image_cache_bytes` only grow within one incarnation."""

    slots_active: Slots = 0
    queue_depth: Count = 0
    """Sequences that wait for a slot."""
    kv_tokens: Count = 0
    """Tokens in the KV cache of running sequences."""
    steps: Count = 0
    """Finished engine steps, including failed ones."""
    steps_failed: Count = 0
    decode_steps: Count = 0
    """Engine steps with at least one decode row."""
    prefill_tokens: Count = 0
    """Prompt and resumed tokens whose KV was computed, without those taken from another sequence."""
    decode_tokens: Count = 0
    """Sampled tokens, including the first of each sequence."""
    sequences_started: Count = 0
    sequences_completed: Count = 0
    slowest_step_ms: Milliseconds = 0
    """Duration of the longest engine step so far."""
    retained_tokens: Count = 0
    """Tokens in the KV cache that are kept from ended sequences, for reuse."""
    prefix_hits: Count = 0
    """Sequences that started with the KV of another one."""
    prefix_tokens: Count = 0
    """Tokens whose KV was reused in this way."""
    reached: StreamId = 0
    """The last stream of which it holds that its prompt and those before it were built or refused, with their grammars.
    Later ones may still be tokenized or compiled."""
    graphs_failed: Count = 0
    """Graphs that could not be compiled in the background; slower graphs are used instead."""
    malformed_calls: Count = 0
    """Parts of answers that began like a tool call and were not one, and are text."""
    memory_bytes: Count = 0
    """Resident memory of the process, weights that it shares with other workers included; 0 if unknown."""
    preemptions: Count = 0
    """Times that a running sequence gave its slot or its KV room to another one. It continues later."""
    others: Count = 0
    """Sequences that a remote worker has for other gateways, running or waiting."""
    stored_hits: Count = 0
    """Those of `prefix_hits` that took rows from the prefix tier, which is apart from the slots."""
    stored_tokens: Count = 0
    """Those of `prefix_tokens` that came from it."""
    stored_bytes: Count = 0
    """Bytes of the prefix tier, which all workers of a machine share."""
    stored_failures: Count = 0
    """Blocks of it that could not be written, or were damaged."""
    drafts: Count = 0
    """Drafts of tokens that were verified, in speculative decoding."""
    draft_tokens: Count = 0
    """Tokens of these drafts."""
    accepted_tokens: Count = 0
    """Those of them that became tokens of answers."""
    drafters_failed: Count = 0
    """Draft models that have failed, and draft nothing any more."""
    state_cache_bytes: Count = 0
    """Bytes of the snapshots of recurrent states that the worker keeps."""
    state_cache_hits: Count = 0
    """Sequences that started with such a snapshot."""
    state_cache_evictions: Count = 0
    """Snapshots that were dropped for others."""
    sparse_prompts: Count = 0
    """Prompts of which a part was left out, in sparse prefill."""
    sparse_kept_tokens: Count = 0
    """Tokens of these prompts that were computed."""
    sparse_left_out_tokens: Count = 0
    """Tokens of these prompts that were not."""
    sparse_dense_prompts: Count = 0
    """Prompts that were computed whole though sparse prefill was asked for: scoring them would have cost too much, or
    failed."""
    images_encoded: Count = 0
    """Images of which the vision tower has computed the rows of embeddings."""
    image_cache_hits: Count = 0
    """Images of prompts whose rows were in the cache of rows, or were being computed for another prompt."""
    image_encode_ms: Count = 0
    """Milliseconds that the vision tower took."""
    image_cache_bytes: Count = 0
    """Bytes of the cache of rows."""


class Hello(Struct, frozen=True, array_like=True, tag="hello", omit_defaults=True, gc=False):
    """First frame of a worker, before it loads its model."""

    protocol: Count
    worker: Name
    incarnation: StreamId
    """The number that the gateway started it with; 0 for a remote worker, which receives it in `Welcome`."""
    pid: Count
    model: Name
    backend: Name
    device: Name
    slots: Slots
    context: Count
    """Tokens of prompt and answer in one slot."""
    config_digest: Label = ""
    """Equal digests mean equal weights, dtype, versions and kind of CPU, and hence equal tokens."""
    model_digest: Label = ""
    """Equal digests mean the same checkpoint, on any backend."""
    model_context: Count = 0
    """The context that the model itself declares; 0 if unknown."""
    context_bound: Label = ""
    """Why `context` is less than that: `setting`, `memory` or `device`; empty if it is not less."""
    gateways: Annotated[int, Meta(ge=1, le=MAX_GATEWAYS)] = 1
    """The number of gateways that a remote worker joins, this one included."""
    key: Label = ""
    """The worker's own public key, 64 hexadecimal digits, on a connection that was made with a join token: the gateway
    lets it connect with that key from now on."""
    phases: Phases = "both"
    """The gateway lets a `prefill` worker compute long prompts, and others the tokens after them."""
    draft_model: Label = ""
    """The name of the model that drafts tokens for it, in speculative decoding; empty if there is none."""
    slots_bound: Label = ""
    """Why `slots` are fewer than the settings have: `model`, for one that only mlx-lm describes; empty if they are
    not."""
    adapter: Label = ""
    """The name of the LoRA adapter that is applied to the model, that of its directory; empty for none."""


class Loading(Struct, frozen=True, array_like=True, tag="loading", omit_defaults=True, gc=False):
    """Progress of the load: `done` of `total` units of `phase`."""

    phase: Label
    done: Count = 0
    total: Count = 0


class SharedTier(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The prefix tier of a worker, which the workers of its machine share."""

    id: Label = ""
    """Workers with equal ids restore the cache rows that each of them has saved. Empty without a tier."""
    rows: Count = 0
    """Cache rows for which it has room."""
    block: Annotated[int, Meta(ge=1, le=MAX_COUNT)] = 1
    """It has whole blocks of so many rows of a prefix."""


class Ready(Struct, frozen=True, array_like=True, tag="ready", omit_defaults=True, gc=False):
    """The model is loaded and one step has run. Requests are accepted from now on."""

    capabilities: Capabilities
    load_ms: Milliseconds = 0
    device: Label = ""
    """The device in use; `Hello` has the requested one."""
    step_ms: Milliseconds = 0
    """Estimated duration of a step with a full budget of prompt tokens, from the warm-up; 0 if unknown."""
    kv_capacity: Count = 0
    """Tokens that all sequences together can have in the KV cache; 0 if unknown."""
    memory_bytes: Count = 0
    """Bytes of its weights, and of its KV cache when that is full; 0 if unknown."""
    rows_format: Label = ""
    """Workers of equal formats compute the same bits for a cache row and store them in the same way, so that one can
    take what another has computed: `ReadRows` and `WriteRows` are honoured. Empty if they are not."""
    row_bytes: Count = 0
    """Bytes of one cache row."""
    tier: SharedTier = SharedTier()
    adapters: Annotated[tuple[Name, ...], Meta(max_length=MAX_ADAPTERS)] = ()
    """The adapters that `Submit.adapter` may name."""
    adapter_places: Annotated[int, Meta(ge=0, le=MAX_ADAPTERS)] = 0
    """Adapters that `LoadAdapter` may load beside them; 0 if it is not to be sent."""


class TokenLogprob(Struct, frozen=True, array_like=True, gc=False):
    """One token with its log-probability by the unchanged logits: before bias, penalties, temperature and filters."""

    token: TokenId
    logprob: Annotated[float, Meta(ge=MIN_LOGPROB, le=0.0)]
    """Natural logarithm; lower values are reported as `MIN_LOGPROB`."""
    piece: Annotated[bytes, Meta(max_length=MAX_PIECE_BYTES)]
    """The token's bytes, which may be part of a character, or the name of a special token."""


class Logprobs(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Log-probabilities at the position of one generated token."""

    sampled: TokenLogprob
    top: Annotated[tuple[TokenLogprob, ...], Meta(max_length=MAX_TOP_LOGPROBS)] = ()
    """The most likely tokens, most likely first, ties by id."""


LogprobsList = Annotated[tuple[Logprobs, ...], Meta(max_length=MAX_TOKENS)]


class PromptToken(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One token of a prompt, with its log-probability given those before it."""

    token: TokenId
    piece: Annotated[bytes, Meta(max_length=MAX_PIECE_BYTES)]
    """As in `TokenLogprob`."""
    logprob: Annotated[float, Meta(ge=MIN_LOGPROB, le=0.0)] | None = None
    """As in `TokenLogprob`; None for the first token of the prompt."""
    top: Annotated[tuple[TokenLogprob, ...], Meta(max_length=MAX_TOP_LOGPROBS)] = ()
    """The most likely tokens at this position, most likely first, ties by id."""


class PromptLogprobs(Struct, frozen=True, array_like=True, tag="prompt", gc=False):
    """Log-probabilities of consecutive tokens of a prompt, in order: before the first `Delta` of the sequence. After a
    resubmission the new worker sends them from the beginning again, with equal values; none if the `Submit` has
    `resume`."""

    stream: StreamId
    start: Count
    """The position of the first of these tokens in the prompt."""
    tokens: Annotated[tuple[PromptToken, ...], Meta(min_length=1, max_length=MAX_PROMPT_PART)]


class TextSegment(Struct, frozen=True, array_like=True, tag="text", gc=False):
    """Text of the answer."""

    text: Text


class ReasoningSegment(Struct, frozen=True, array_like=True, tag="reasoning", gc=False):
    """Text that the model thought before its answer."""

    text: Text


class ToolCallSegment(Struct, frozen=True, array_like=True, tag="call", omit_defaults=True, gc=False):
    """A part of a tool call. The first part of a call has its name."""

    call: Annotated[int, Meta(ge=0, le=MAX_SEGMENTS)]
    """The position of the call among those of the answer, from 0."""
    name: Label = ""
    arguments: Text = ""
    """The arguments of all parts of a call are one JSON text."""


Segment = TextSegment | ReasoningSegment | ToolCallSegment
Segments = Annotated[tuple[Segment, ...], Meta(max_length=MAX_SEGMENTS)]


class Delta(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """New output of one sequence in one step. Text may lag behind tokens (an incomplete character, a possible stop
    string)."""

    stream: StreamId
    tokens: Tokens
    text: Text = ""
    logprobs: LogprobsList = ()
    """One for each token, if requested."""
    segments: Segments = ()
    """The output in the order of generation, if it is parsed and not all of it is text; `text` is empty then."""


class StartedStream(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Way of a sequence to its first new token on this worker: durations by the worker's clock, one after the other, in
    microseconds."""

    stream: StreamId
    tokenize_us: Count = 0
    """From receipt until the prompt was tokenized and the grammar compiled, behind those before it."""
    queue_us: Count = 0
    """From then to the slot."""
    prefill_us: Count = 0
    """From the slot to the token."""
    prompt_tokens: Count = 0
    """Prompt and resumed tokens."""
    cached_tokens: Count = 0
    """Those of them whose KV was taken from another sequence."""
    stored_tokens: Count = 0
    """Those of the cached tokens whose KV was restored from the prefix tier."""
    kept: RangeBounds = ()
    """The ranges of the prompt that were computed, where the others were left out; empty where none were."""
    created_tokens: Count = 0
    """As in `Usage`: known from the first token on, so that a stream that moves to another worker keeps them."""


class HeldPrefix(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The prefix that an ended sequence has left in the cache for reuse, in place of the one that was reported of the
    same `holder` before."""

    holder: StreamId
    """The number of what holds it, in this incarnation: a slot."""
    tokens: Count = 0
    """Tokens whose KV is held; 0 if none are any more."""
    digests: Annotated[tuple[Count, ...], Meta(max_length=MAX_PREFIX_DIGESTS)] = ()
    """The digests of the prompt and the answer, as far as their KV is held: see `protocol.prefix_digests`."""


HeldPrefixes = Annotated[tuple[HeldPrefix, ...], Meta(max_length=MAX_SLOTS)]


class Step(Struct, frozen=True, array_like=True, tag="step", omit_defaults=True):
    """Deltas of all sequences in one engine step."""

    deltas: Annotated[tuple[Delta, ...], Meta(max_length=MAX_SLOTS)]
    gauges: Gauges = Gauges()
    started: Annotated[tuple[StartedStream, ...], Meta(max_length=MAX_SLOTS)] = ()
    """One for each sequence whose first new token is in this step."""
    prefixes: HeldPrefixes = ()
    """Changes of the prefixes that are held for reuse, since the last frame that reported any."""


class Usage(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Token counts of one sequence, and where its time went."""

    prompt_tokens: Count
    completion_tokens: Count
    """Generated tokens, including resumed ones and an end-of-sequence token."""
    queue_ms: Milliseconds = 0
    prefill_ms: Milliseconds = 0
    decode_ms: Milliseconds = 0
    cached_tokens: Count = 0
    """Prompt and resumed tokens whose KV was taken from another sequence."""
    created_tokens: Count = 0
    """Prompt tokens of a pinned prefix whose KV was computed and is kept for later requests, see `Pin`."""
    sparse_kept_tokens: Count = 0
    """Prompt tokens that were computed, where others were left out; 0 where none were."""
    reasoning_tokens: Count = 0
    """Those of the completion tokens that are reasoning, if the output is parsed."""


class Finished(Struct, frozen=True, array_like=True, tag="finished", omit_defaults=True, gc=False):
    """Successful end of a sequence; its last frame. `text`, `segments` and `tokens` are what no delta contained."""

    stream: StreamId
    reason: FinishReason
    usage: Usage
    tokens: Tokens = ()
    text: Text = ""
    logprobs: LogprobsList = ()
    """One for each of these tokens, if requested."""
    segments: Segments = ()
    """As in `Delta`."""
    stop: Stop | TokenId | None = None
    """The one of `Limits.stop` or `Limits.stop_ids` that ended the answer; None for another end."""
    vector: VectorBytes = b""
    """The result that `Submit.pooled` asks for."""


class Failed(Struct, frozen=True, array_like=True, tag="failed", omit_defaults=True, gc=False):
    """Error end of a sequence; its last frame."""

    stream: StreamId
    code: ErrorCode
    text: Reason
    field: Label = ""
    """The request field at fault, when one is."""
    retry_after_s: Count = 0
    """Seconds after which the request may be sent again; 0 if the worker cannot tell."""


class Tokenized(Struct, frozen=True, array_like=True, tag="tokenized", omit_defaults=True, gc=False):
    """The answer to a `Tokenize`."""

    query: StreamId
    count: Count = 0
    """The number of tokens."""
    tokens: Tokens = ()
    """The tokens, if they are wanted."""
    text: Text = ""
    """The text, if it is wanted; or the reason of a failure."""
    code: ErrorCode | None = None
    """None unless it failed."""
    field: Label = ""
    """The request field at fault, when one is."""


class Rows(Struct, frozen=True, array_like=True, tag="rows", omit_defaults=True, gc=False):
    """The answer to a `ReadRows`: consecutive cache rows of a sequence, from `start` on."""

    query: StreamId
    held: Count = 0
    """Rows that the sequence has now; 0 if there is no such sequence, or none whose rows can be read."""
    tokens: RowTokens = ()
    """The tokens of the rows that are sent; those of images have numbers below 0."""
    rows: RowBytes = b""
    """These rows."""
    digest: RowsDigest = b""
    """See `protocol.rows_digest`."""
    state: Count = 0
    """Bytes of the recurrent state of a sequence, without which its rows are of no use; 0 if the model has none. If the
    question was for it, `rows` are a part of the state after the `held` rows."""


class RowsWritten(Struct, frozen=True, array_like=True, tag="written", omit_defaults=True, gc=False):
    """The answer to a `WriteRows`."""

    query: StreamId
    rows: Count = 0
    """Rows of the transfer that the worker holds now; 0 if it did not take these, and takes no more of the
    transfer."""
    text: Reason = ""
    """Why not."""


class AdapterChanged(Struct, frozen=True, array_like=True, tag="adapter", omit_defaults=True, gc=False):
    """The answer to a `LoadAdapter` or an `UnloadAdapter`."""

    query: StreamId
    text: Reason = ""
    """Why the adapter was not loaded; empty if it was."""


HEARTBEAT_S = 1.0
"""Time without another frame after which a worker sends a `Heartbeat`."""
SILENT_S = 3 * HEARTBEAT_S
"""Time of three missed heartbeats: the worker may be starved, suspended or disconnected."""


class Heartbeat(Struct, frozen=True, array_like=True, tag="beat", omit_defaults=True, gc=False):
    """Sent if no other frame was sent for `HEARTBEAT_S`: the event loop is alive. `gauges.steps` shows whether the
    engine is."""

    gauges: Gauges
    prefixes: HeldPrefixes = ()
    """As in `Step`."""


class Bye(Struct, frozen=True, array_like=True, tag="bye", gc=False):
    """Last frame of a worker."""

    reason: ByeReason
    text: Reason


Event = (
    Hello
    | Loading
    | Ready
    | Step
    | PromptLogprobs
    | Finished
    | Failed
    | Tokenized
    | Rows
    | RowsWritten
    | AdapterChanged
    | Heartbeat
    | Bye
)
