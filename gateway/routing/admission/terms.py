"""The terms under which a sequence is admitted: whose it is, how long its prompt is, and how long it may wait."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from protocol.prefix_digests import image_tokens
from protocol.request import ChatInput, EmbeddedInput, InfillInput, Input, Message, PairInput, TextInput
from protocol.scheduling import NORMAL, Urgency

BYTES_PER_TOKEN = 3
"""Bytes of text in a token. English text has some four, and other text three or fewer: it is better to expect too much,
as a reservation beyond what was used is given back."""


@dataclass(frozen=True, slots=True)
class AdmissionTerms:
    """The terms of a sequence, which decide its turn while it waits."""

    client: str = ""
    """The name of the client (`gateway.key_weights.client_name`); all clients without one are one."""
    prompt_tokens: int = 0
    """Estimated tokens of its prompt."""
    urgency: Urgency = NORMAL
    queue_until: float = math.inf
    """The time, by the clock of the event loop, at which it gives up waiting for its first turn."""


NO_TERMS = AdmissionTerms()


def prompt_tokens(source: Input) -> int:
    """Estimate the tokens of a prompt, until a worker has counted them. Those of token ids are known."""
    images = 0
    match source:
        case TextInput():
            texts = [source.text]
        case ChatInput():
            texts = [source.tools_json, *(text for message in source.messages for text in _texts(message))]
            images = sum(map(image_tokens, source.images))
        case InfillInput():
            texts = [source.prefix, source.suffix]
        case PairInput():
            texts = [source.first, source.second]
        case EmbeddedInput():
            return source.count
        case _:
            return len(source.tokens)
    return images - (-sum(map(_size, texts)) // BYTES_PER_TOKEN)


def _texts(message: Message) -> Iterator[str]:
    yield message.content
    yield message.reasoning
    for call in message.tool_calls:
        yield call.name
        yield call.arguments


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
