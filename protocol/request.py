"""Request of a client as the worker gets it: input, sampling parameters and limits."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

from protocol.bounds import (
    IMAGE_DIGEST_BYTES,
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORDS,
    MAX_BIAS,
    MAX_BIASES,
    MAX_BREAKERS,
    MAX_DRY,
    MAX_EMBEDDING_BYTES,
    MAX_GRAMMAR,
    MAX_IMAGE_BYTES,
    MAX_IMAGE_PIXELS,
    MAX_IMAGE_SIDE,
    MAX_IMAGES,
    MAX_IMAGES_PIXELS,
    MAX_INSTRUCTION,
    MAX_MESSAGES,
    MAX_PENALTY,
    MAX_PIN_S,
    MAX_PINS,
    MAX_REPETITION,
    MAX_SEED,
    MAX_SEGMENTS,
    MAX_STOP_IDS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TEXT,
    MAX_TOKENS,
    MAX_TOOL_CALLS,
    MAX_TOOLS_JSON,
    MAX_TOP_K,
    MAX_TOP_LOGPROBS,
    MAX_VECTOR_WIDTH,
    MIN_KEEP,
    MIN_REPETITION,
    Label,
    Milliseconds,
    Name,
    Stop,
    Text,
    Time,
    TokenId,
    Tokens,
)


class ToolCall(Struct, frozen=True, array_like=True, gc=False):
    """A call of a tool in an earlier message of the assistant."""

    id: Label
    """The id by which the tool's result names the call; templates of some models write it."""
    name: Name
    arguments: Text
    """A JSON object."""


ImageFormat = Literal["png", "jpeg", "webp", "gif"]
ImageDetail = Literal["auto", "low", "high"]


class Image(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """An image file. Its header has been checked by the gateway: format, sides and number of pixels."""

    format: ImageFormat
    width: Annotated[int, Meta(ge=1, le=MAX_IMAGE_SIDE)]
    height: Annotated[int, Meta(ge=1, le=MAX_IMAGE_SIDE)]
    """As the file stores it, before any rotation that its metadata asks for."""
    data: Annotated[bytes, Meta(min_length=1, max_length=MAX_IMAGE_BYTES)]
    detail: ImageDetail = "auto"
    """Bounds its tokens, for models that can tell."""
    field: Label = ""
    """The request field that errors name."""
    digest: Annotated[bytes, Meta(max_length=IMAGE_DIGEST_BYTES)] = b""
    """BLAKE2b of the data, by which prefix digests tell images apart, so that nobody has to read them twice."""


class ImagePlace(Struct, frozen=True, array_like=True, gc=False):
    """The place of an image in the content of a message."""

    image: Annotated[int, Meta(ge=0, le=MAX_IMAGES - 1)]
    """Its index in `ChatInput.images`."""
    at: Annotated[int, Meta(ge=0, le=MAX_TEXT)]
    """Characters of the content before it. Places are in rising order."""


class Message(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One chat message, for the template."""

    role: Annotated[str, Meta(min_length=1, max_length=32)]
    content: Text
    name: Label = ""
    """Name of the participant, for templates that write it; empty for none."""
    tool_calls: Annotated[tuple[ToolCall, ...], Meta(max_length=MAX_TOOL_CALLS)] = ()
    """Calls that the assistant made in this message."""
    tool_call_id: Label = ""
    """The call that a message of the role `tool` answers; empty for none."""
    reasoning: Text = ""
    """The reasoning before this message of the assistant, for templates that repeat it."""
    images: Annotated[tuple[ImagePlace, ...], Meta(max_length=MAX_IMAGES)] = ()
    """Images within the content."""


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class TemplateOptions(Struct, frozen=True, array_like=True, gc=False):
    """Variables of chat templates that a client may set. The list is closed: any other variable, such as the template
    itself or a limit of the tokenizer, would let a client change what the server runs (CVE-2025-62426)."""

    enable_thinking: bool | None = None
    """Let the model reason before its answer: Qwen3, SmolLM3."""
    thinking: bool | None = None
    """The same, for Granite and DeepSeek."""
    thinking_budget: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    """Tokens of reasoning that the template asks the model to stay within: Seed-OSS."""
    reasoning_effort: ReasoningEffort | None = None
    """The effort of reasoning that the template asks for: gpt-oss."""


class ToolChoice(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Choice of the tools that an answer may or must call."""

    mode: Literal["auto", "none", "required"] = "auto"
    """`auto`: text or calls, as the model decides; `none`: no calls; `required`: one call at least."""
    name: Label = ""
    """With `required`: the only tool that may be called; empty for any."""
    parallel: bool = True
    """More than one call is allowed."""


class TextInput(Struct, frozen=True, array_like=True, tag="text", gc=False):
    """Plain prompt, which the worker tokenizes unchanged."""

    text: Text


class TokensInput(Struct, frozen=True, array_like=True, tag="tokens", gc=False):
    """Prompt of token ids."""

    tokens: Tokens


class Pin(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A prefix of a chat's prompt whose KV is to be kept for some time, by workers that can: up to the end of the first
    messages, or into the next one. It changes no token."""

    messages: Annotated[int, Meta(ge=0, le=MAX_MESSAGES)]
    seconds: Annotated[int, Meta(ge=1, le=MAX_PIN_S)]
    characters: Annotated[int, Meta(ge=0, le=MAX_TEXT)] = 0
    """Characters of the content of the next message."""


class ChatInput(Struct, frozen=True, array_like=True, tag="chat", omit_defaults=True):
    """Messages, which the worker renders with the model's chat template."""

    messages: Annotated[tuple[Message, ...], Meta(min_length=1, max_length=MAX_MESSAGES)]
    tools_json: Annotated[str, Meta(max_length=MAX_TOOLS_JSON)] = ""
    """JSON list of tool definitions for the template; empty for none."""
    now: Time = 0
    """Current time for the template, in seconds since 1970, so that every worker renders the same prompt. 0 means the
    worker's own clock."""
    options: TemplateOptions = TemplateOptions()
    """Variables that the client sets. None leaves a variable undefined."""
    tool_choice: ToolChoice = ToolChoice()
    parse_tools: bool = False
    """Report tool calls as segments of the output. Without it the model's own notation of a call is text."""
    parse_reasoning: bool = False
    """Report reasoning as segments of the output. Without it the model's own notation of it is text."""
    pins: Annotated[tuple[Pin, ...], Meta(max_length=MAX_PINS)] = ()
    images: Annotated[tuple[Image, ...], Meta(max_length=MAX_IMAGES)] = ()
    """The images of all messages, each with one place at least, which have up to `MAX_IMAGE_BYTES` together."""

    @property
    def image_bytes(self) -> int:
        """Bytes of all images."""
        return sum(len(each.data) for each in self.images)

    @property
    def image_problem(self) -> str:
        """The problem with the images and their places that no bound of a single field tells; empty for none."""
        if (size := self.image_bytes) > MAX_IMAGE_BYTES:
            return f"the images have {size} bytes together, {MAX_IMAGE_BYTES} are allowed"
        if any(each.width * each.height > MAX_IMAGE_PIXELS for each in self.images):
            return f"an image has more than {MAX_IMAGE_PIXELS} pixels"
        if (pixels := sum(each.width * each.height for each in self.images)) > MAX_IMAGES_PIXELS:
            return f"the images have {pixels} pixels together, {MAX_IMAGES_PIXELS} are allowed"
        placed: set[int] = set()
        for message in self.messages:
            last = 0
            for place in message.images:
                if place.image >= len(self.images):
                    return f"a place has image {place.image} of {len(self.images)}"
                if not last <= place.at <= len(message.content):
                    return f"a place is at character {place.at}: give those of a message in order, within its content"
                last = place.at
                placed.add(place.image)
        if len(placed) < len(self.images):
            return "an image has no place in a message"
        return "" if sum(len(each.images) for each in self.messages) <= MAX_IMAGES else f"more than {MAX_IMAGES} places"


class InfillInput(Struct, frozen=True, array_like=True, tag="infill", gc=False):
    """The text before and after a gap, which the worker puts between the fill-in-the-middle tokens. The answer is
    the text of the gap."""

    prefix: Text
    suffix: Text


EmbeddingType = Literal["bfloat16", "float16", "float32"]


class EmbeddingRows(Struct, frozen=True, array_like=True, tag="rows", gc=False):
    """Consecutive rows of embeddings, each in the place of a token."""

    dtype: EmbeddingType
    width: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    """Numbers of a row: the hidden size of the model."""
    data: Annotated[bytes, Meta(min_length=2, max_length=MAX_EMBEDDING_BYTES)]
    """The numbers in little-endian order, one row after the other."""

    @property
    def count(self) -> int:
        """The number of whole rows."""
        return len(self.data) // (self.width * EMBEDDING_BYTES[self.dtype])


EMBEDDING_BYTES: Mapping[EmbeddingType, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of a number."""


class EmbeddedInput(Struct, frozen=True, array_like=True, tag="embedded", gc=False):
    """Prompt of which some parts are rows of embeddings, the others token ids.

    The rows stand for rows of the model's table of embeddings: a scale that the model applies to its own is applied to
    them as well.
    """

    segments: Annotated[tuple[TokensInput | EmbeddingRows, ...], Meta(min_length=1, max_length=MAX_SEGMENTS)]

    @property
    def count(self) -> int:
        """Tokens and rows together."""
        return sum(len(each.tokens) if isinstance(each, TokensInput) else each.count for each in self.segments)

    @property
    def data_bytes(self) -> int:
        """Bytes of all rows."""
        return sum(len(each.data) for each in self.segments if isinstance(each, EmbeddingRows))


class PairInput(Struct, frozen=True, array_like=True, tag="pair", gc=False):
    """Two texts that a model compares: a query and a document."""

    first: Text
    second: Text


Input = TextInput | TokensInput | ChatInput | InfillInput | EmbeddedInput | PairInput


class Pooled(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The result that is computed of a prompt in place of an answer: of a text, token ids, or a pair of texts."""

    kind: Literal["vector", "scores"] = "vector"
    """`vector`: the embedding of the prompt; `scores`: one number for each label of the model's classifier."""
    dimensions: Annotated[int, Meta(ge=0, le=MAX_VECTOR_WIDTH)] = 0
    """The first numbers of the vector that are kept, before it is normalized; 0 keeps all."""
    normalize: bool | None = None
    """The vector has length 1. None leaves it to the checkpoint."""
    activate: bool = True
    """The scores are those after the activation that the checkpoint names."""
    truncate: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    """Keep at most so many tokens of a longer prompt, the first ones; 0 is the context. None refuses a prompt that is
    longer than the context."""
    special: bool = True
    """Add the tokens that the model expects around a text."""
    prompt: Label = ""
    """The name of a prompt of the checkpoint that is put before a text; empty for the checkpoint's default."""
    instruction: Annotated[str, Meta(max_length=MAX_INSTRUCTION)] = ""
    """The text by which a model judges a pair of texts; empty for that of the checkpoint."""
    probabilities: bool = False
    """The scores are the probabilities of the labels, whatever `activate` says."""


class Grammar(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A constraint of the answer. It begins after the reasoning, if the reasoning is parsed."""

    kind: Literal["choice", "json_object", "json_schema", "lark", "regex"]
    source: Annotated[str, Meta(max_length=MAX_GRAMMAR)] = ""
    """A JSON list of strings, a JSON schema, a Lark grammar or a regular expression; empty for `json_object`."""
    field: Label = ""
    """The request field that errors name."""


Penalty = Annotated[float, Meta(ge=-MAX_PENALTY, le=MAX_PENALTY)]


class Bias(Struct, frozen=True, array_like=True, gc=False):
    """Value added to the logit of one token."""

    token: TokenId
    bias: Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]


class Sampling(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Sampling parameters. The noise depends on (seed, position) alone, never on the batch.

    The order is allowed_tokens, logit_bias and bad_words, repetition_penalty, then frequency_penalty, presence_penalty
    and DRY together (`workers/sampling/logit_edits.py`), then temperature, top_k, typical_p, top_p, min_p, XTC
    (`workers/sampling/sample.py`). The temperature comes before the filters, as in vLLM and transformers; the filters
    are in llama.cpp's order.
    """

    temperature: Annotated[float, Meta(ge=0.0, le=MAX_TEMPERATURE)] = 0.0
    """0 is greedy: the smallest token id among the highest logits."""
    top_k: Annotated[int, Meta(ge=0, le=MAX_TOP_K)] = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Keep the smallest set of most likely tokens with at least this mass."""
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Keep tokens with at least this fraction of the most likely token's probability."""
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] = 0
    presence_penalty: Penalty = 0.0
    """Subtracted from the logits of generated tokens."""
    frequency_penalty: Penalty = 0.0
    """Subtracted from a token's logit once per occurrence among generated tokens."""
    repetition_penalty: Annotated[float, Meta(ge=MIN_REPETITION, le=MAX_REPETITION)] = 1.0
    """Divides positive and multiplies other logits of tokens in the prompt or the answer."""
    logit_bias: Annotated[tuple[Bias, ...], Meta(max_length=MAX_BIASES)] = ()
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    """Report log-probabilities of the sampled token and of this many most likely ones; None reports none."""
    typical_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Keep the tokens whose information is closest to the entropy, with at least this mass; 1 keeps all."""
    xtc_probability: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Probability of excluding the top choices: all tokens over `xtc_threshold` but the least likely of them."""
    xtc_threshold: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    dry_multiplier: Annotated[float, Meta(ge=0.0, le=MAX_DRY)] = 0.0
    """Strength of the DRY penalty of tokens that would continue a repetition; 0 is none."""
    dry_base: Annotated[float, Meta(ge=1.0, le=MAX_DRY)] = 1.75
    dry_allowed_length: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] = 2
    """Length of a repetition that is not penalized yet."""
    dry_range: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    """Number of last tokens in which repetitions are looked for; 0 means all."""
    dry_breakers: Annotated[tuple[Stop, ...], Meta(max_length=MAX_BREAKERS)] = ()
    """Texts that a repetition does not extend over."""
    bad_words: Annotated[tuple[Stop, ...], Meta(max_length=MAX_BAD_WORDS)] = ()
    """Texts whose tokens, with and without a space before them, may not be generated one after the other."""
    allowed_tokens: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_ALLOWED_TOKENS)] = ()
    """The only tokens that may be generated, at every position; empty allows all. An end-of-sequence token that is not
    among them does not end the answer."""


class Limits(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Conditions that end the answer, and what it may cost."""

    max_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    """Maximum number of generated tokens; None means up to the end of the context. 0 computes the prompt alone."""
    stop: Annotated[tuple[Stop, ...], Meta(max_length=MAX_STOPS)] = ()
    """Stop strings: the text ends before the first of them."""
    ignore_eos: bool = False
    deadline_ms: Milliseconds = 0
    """Milliseconds from receipt by the worker until the request fails with `DEADLINE`; 0 means no deadline."""
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    """Minimum number of generated tokens before an end-of-sequence token, or one of `stop_ids`, may be sampled."""
    stop_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_STOP_IDS)] = ()
    """Tokens that end the answer, as an end-of-sequence token does; `ignore_eos` does not concern them."""
    keep_stop: bool = False
    """The stop string that ended the answer, or the text of the token, is part of the text."""
    reasoning_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    """Maximum number of tokens of reasoning, after which it is ended; None means no maximum of its own."""
    reasoning_optional: bool = False
    """A model whose notation of reasoning is not known ignores `reasoning_tokens`, and does not refuse the request."""
    queue_ms: Milliseconds = 0
    """Milliseconds from receipt by the worker until the request fails with `QUEUE_TIMEOUT`, unless its prompt is being
    prefilled by then; 0 means that it may wait up to its deadline."""
    speculate: bool = True
    """Tokens of the answer may be drafted by a worker that does so. They change nothing but its speed."""
    sparse_prefill: bool | None = None
    """Compute only the part of the prompt to which a draft model attends most. The answer is another one than that of
    the whole prompt. None leaves it to the worker's threshold."""
    sparse_keep: Annotated[float, Meta(ge=MIN_KEEP, le=1.0)] | None = None
    """The part of the prompt that is kept then; None is the worker's default."""


FinishReason = Literal["stop", "length", "cancelled", "tool_calls"]
"""`stop`: end-of-sequence token or stop string; `length`: `max_tokens` or the end of the context; `tool_calls`: like
`stop`, after the last of the tool calls that the answer consists of."""
