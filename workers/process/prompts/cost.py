"""Estimates of the work that the prompt and the grammar of a request take."""

from protocol.commands import Submit
from protocol.request import (
    ChatInput,
    EmbeddedInput,
    Image,
    InfillInput,
    Input,
    Message,
    PairInput,
    TextInput,
    TokensInput,
)

CHARACTERS_PER_MESSAGE = 32
"""Characters to tokenize that cost as much as rendering one message, at least."""
CHARACTERS_PER_TOKEN = 4
"""Characters to tokenize that cost as much as detokenizing one resumed token."""
BYTES_PER_CHARACTER = 512
"""Bytes of embeddings whose digests cost as much as tokenizing one character."""
CHARACTERS_PER_ROW = 2
"""Characters to tokenize that cost as much as the number of one row of embeddings, however short it is."""
CHARACTERS_PER_IMAGE = 8192
"""Characters to tokenize that cost as much as preparing an image, at least."""
PIXELS_PER_CHARACTER = 25
"""Pixels of an image that cost as much to prepare as tokenizing one character."""
CHARACTERS_PER_BREAKER = 4096
"""Characters to tokenize that cost as much as looking for one breaker in the vocabulary."""


def tokenize_cost(submit: Submit) -> int:
    """Estimate the cost of building a prompt, in characters of text to tokenize: about 1 us each for a model's
    tokenizer."""
    sampling = submit.sampling
    others = CHARACTERS_PER_TOKEN * len(submit.resume) + 2 * sum(map(len, sampling.bad_words))
    if sampling.dry_multiplier:
        others += CHARACTERS_PER_BREAKER * len(sampling.dry_breakers)
    return others if isinstance(submit.input, TokensInput) else others + input_cost(submit.input)


def input_cost(source: Input) -> int:
    """Estimate the cost of tokenizing a text or a chat, or of detokenizing tokens, in the same unit."""
    if isinstance(source, TextInput):
        return len(source.text)
    if isinstance(source, ChatInput):
        characters = len(source.tools_json) + sum(map(_characters, source.messages))
        characters += CHARACTERS_PER_MESSAGE * len(source.messages)
        return characters + sum(map(_image_cost, source.images))
    if isinstance(source, InfillInput):
        return len(source.prefix) + len(source.suffix)
    if isinstance(source, EmbeddedInput):
        return source.data_bytes // BYTES_PER_CHARACTER + CHARACTERS_PER_ROW * source.count
    if isinstance(source, PairInput):
        return len(source.first) + len(source.second)
    return CHARACTERS_PER_TOKEN * len(source.tokens)


def may_be_constrained(submit: Submit) -> bool:
    """The answer may have a grammar: the request's own, or that of tool calls."""
    source = submit.input
    tools = isinstance(source, ChatInput) and source.parse_tools and bool(source.tools_json)
    return submit.grammar is not None or tools


def _image_cost(image: Image) -> int:
    """Decoding, resizing and normalizing: always too long for the event loop."""
    return CHARACTERS_PER_IMAGE + image.width * image.height // PIXELS_PER_CHARACTER


def _characters(message: Message) -> int:
    calls = sum(len(call.id) + len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.name) + len(message.reasoning) + len(message.tool_call_id) + calls
