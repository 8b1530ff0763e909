"""The bodies of the two endpoints: OpenAI's fields and Baton's own, with their bounds."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.openai.chat.tool_schema import ChatToolCalls, ChatToolChoice, ChatTools
from gateway.openai.ignored import CacheControl
from gateway.openai.structured import StructuredFields
from protocol.bounds import (
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORDS,
    MAX_BIAS,
    MAX_BIASES,
    MAX_BREAKERS,
    MAX_DRY,
    MAX_FRAMES_PER_MESSAGE,
    MAX_MESSAGES,
    MAX_NAME,
    MAX_REPETITION,
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOP_IDS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TOKENS,
    MAX_TOP_K,
    MAX_TOP_LOGPROBS,
    MIN_KEEP,
    MIN_REPETITION,
    Label,
    Name,
    Stop,
    Text,
    TokenId,
)
from protocol.request import ImageDetail, Penalty, ReasoningEffort
from protocol.scheduling import MAX_PRIORITY

MAX_PARTS = 256
MAX_PARTICIPANT = 64

PromptLimit = Annotated[int, Meta(ge=-1, le=MAX_TOKENS)]
"""The same for completions, which may generate nothing."""
TokenLimit = Annotated[int, Meta(ge=-1, le=MAX_TOKENS, extra_json_schema={"not": {"const": 0}})]
"""Maximum of generated tokens; -1 is no limit but the context. The decoder refuses 0."""
RepetitionPenalty = Annotated[float, Meta(ge=MIN_REPETITION, le=MAX_REPETITION)]
# As in OpenAI's API: templates write a name between their own marks, which it must not contain. After `$`, Python would
# accept a line break.
Participant = Annotated[str, Meta(max_length=MAX_PARTICIPANT, pattern=r"^[^\s<|\\/>]*$(?![\s\S])")]
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]
Biases = Annotated[dict[TokenId, Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]], Meta(max_length=MAX_BIASES)]
ReasoningBudget = Annotated[int, Meta(ge=-1, le=MAX_TOKENS)]
"""Maximum tokens of reasoning; -1 is no limit of its own."""
StopText = Annotated[str, Meta(max_length=MAX_STOP_CHARS)]
"""A stop string; an empty one is ignored."""
Stops = StopText | Annotated[tuple[StopText | None, ...], Meta(max_length=MAX_STOPS)]
BadWords = Annotated[tuple[Stop, ...], Meta(max_length=MAX_BAD_WORDS)]
StopIds = Annotated[tuple[TokenId, ...], Meta(max_length=MAX_STOP_IDS)]
AllowedIds = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_ALLOWED_TOKENS)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
TypicalP = Annotated[float, Meta(gt=0, le=1)]
BreakerList = Annotated[str, Meta(max_length=(MAX_STOP_CHARS + 8) * MAX_BREAKERS)]
"""Breakers in JSON, as some clients send them."""
Breakers = BreakerList | Annotated[tuple[Stop, ...], Meta(max_length=MAX_BREAKERS)]
TokenPrompt = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_TOKENS)]
# No mixture, which the decoder refuses.
_OneKind = Meta(extra_json_schema={"anyOf": [{"items": {"type": kind}} for kind in ("string", "integer", "array")]})
Prompt = Text | Annotated[tuple[Text | TokenId | TokenPrompt, ...], Meta(min_length=1, max_length=MAX_TOKENS), _OneKind]


class StreamOptions(Struct, forbid_unknown_fields=True):
    """`include_usage` adds a last chunk with the counts of the whole request. `resume_s`, Baton's own, is how many
    seconds the stream is kept for a client whose connection ended. Without `stream: true` only `resume_s` is refused;
    the others have no effect then."""

    include_usage: bool | None = None
    resume_s: Annotated[float, Meta(ge=0)] | None = None
    include_obfuscation: Literal[False] | None = None
    # Refused when set: the length of the prompt is known when its answer ends.
    continuous_usage_stats: Any = None


class _SharedFields(StructuredFields, kw_only=True):
    """Fields of both endpoints, with OpenAI's defaults. `top_k`, `min_p`, `repetition_penalty`, `min_tokens`,
    `stop_token_ids`, `include_stop_str_in_output`, `bad_words`, `ignore_eos` and `return_token_ids` are additions, with
    the names that they have in vLLM. `typical_p`, XTC and DRY have llama.cpp's names; `repeat_penalty`, `n_predict` and
    `typ_p` are its names of `repetition_penalty`, `max_tokens` and `typical_p`. `speculate` and those of
    sparse prefill are Baton's own."""

    model: Name | None = None
    """May be left out where one model is served, as in the bodies of vLLM's and llama.cpp's servers."""
    n: Annotated[int, Meta(ge=1, le=MAX_FRAMES_PER_MESSAGE)] | None = None
    max_tokens: TokenLimit | None = None
    n_predict: TokenLimit | None = None
    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOP_K)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-1, le=MAX_SEED)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    repeat_penalty: RepetitionPenalty | None = None
    logit_bias: Biases | None = None
    typical_p: TypicalP | None = None
    typ_p: TypicalP | None = None
    xtc_probability: Fraction | None = None
    xtc_threshold: Fraction | None = None
    dry_multiplier: Annotated[float, Meta(ge=0, le=MAX_DRY)] | None = None
    dry_base: Annotated[float, Meta(ge=1, le=MAX_DRY)] | None = None
    dry_allowed_length: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    dry_penalty_last_n: Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None = None
    dry_sequence_breakers: Breakers | None = None
    bad_words: BadWords | None = None
    allowed_token_ids: AllowedIds | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    stop: Stops | None = None
    stop_token_ids: StopIds | None = None
    include_stop_str_in_output: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    speculate: bool | None = None
    sparse_prefill: bool | None = None
    sparse_prefill_keep: Annotated[float, Meta(ge=MIN_KEEP, le=1)] | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: TopLogprobs | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None


class CompletionBody(_SharedFields, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: Prompt | None = None
    """Null only with `prompt_embeds`."""
    prompt_embeds: Annotated[str, Meta(min_length=1)] | None = None
    """Rows of embeddings in place of the prompt: a file of safetensors in base64, with one tensor."""
    max_tokens: PromptLimit | None = None
    n_predict: PromptLimit | None = None
    logprobs: TopLogprobs | Literal[False] | None = None
    """The number of most likely tokens to report with each token."""
    echo: bool | None = None
    """The prompt is the beginning of the text."""
    best_of: Annotated[int, Meta(ge=1, le=MAX_FRAMES_PER_MESSAGE)] | None = None
    """The number of candidates, of which the best `n` are choices."""
    suffix: Text | None = None
    """The text after the answer; an empty one is ignored."""
    # Refused when they would change something: see `gateway.openai.unsupported`.
    add_special_tokens: Any = None


class TextPart(Struct, tag_field="type", tag="text", forbid_unknown_fields=True, gc=False):
    """A text in a message's content."""

    text: Text
    cache_control: CacheControl | None = None


class ImageUrlFields(Struct, forbid_unknown_fields=True, gc=False):
    """An image by its URL, which may be a data URL."""

    url: str
    detail: ImageDetail | None = None


class ImagePart(Struct, tag_field="type", tag="image_url", forbid_unknown_fields=True, gc=False):
    """An image in the content of a message of the user. Some clients send the URL alone."""

    image_url: ImageUrlFields | str
    cache_control: CacheControl | None = None


ContentParts = Annotated[tuple[TextPart | ImagePart, ...], Meta(min_length=1, max_length=MAX_PARTS)]


class ChatMessage(Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """One message. Newer clients say `developer` for `system`; the template gets it as `system`. Only a message of the
    assistant may have no content. A message of the role `tool` is the result of the call `tool_call_id`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | ContentParts | None = None
    name: Participant | None = None
    cache_control: CacheControl | None = None
    tool_calls: ChatToolCalls | None = None
    tool_call_id: Label | None = None
    reasoning: Text | None = None
    reasoning_content: Text | None = None
    refusal: Text | None = None
    # Added by OpenAI's client, which parses the content; the content is what counts.
    parsed: Any = None
    # Refused when set, as they would not reach the template. Replies that clients send back have many of them, empty.
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    prefix: Any = None
    provider_specific_fields: Any = None
    reasoning_details: Any = None
    thinking_blocks: Any = None


class TemplateKwargs(Struct, forbid_unknown_fields=True, kw_only=True):
    """Variables for the chat template. One that the template does not read has no effect."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    thinking_budget: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    reasoning_effort: ReasoningEffort | None = None


class ChatBody(_SharedFields, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[tuple[ChatMessage, ...], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: ChatTools | None = None
    tool_choice: ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    include_reasoning: bool | None = None
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None = None
    thinking_token_budget: ReasoningBudget | None = None
    reasoning_budget: ReasoningBudget | None = None
    # Refused when they would change something: see `gateway.openai.unsupported`.
    add_generation_prompt: Any = None
    audio: Any = None
    best_of: Any = None
    chat_template: Any = None
    continue_final_message: Any = None
    documents: Any = None
    echo: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    prediction: Any = None
    verbosity: Any = None
    web_search_options: Any = None
