"""The terms under which a sequence is admitted: whose it is, how long its prompt is, and how long it may wait."""

import math
from dataclasses import dataclass

from protocol.request import ChatInput, InfillInput, Input, Message, TextInput
from protocol.scheduling import NORMAL, Urgency

CHARACTERS_PER_TOKEN = 4
"""Characters of text in a token, on average."""


@dataclass(frozen=True, slots=True)
class AdmissionTerms:
    """The terms of a sequence, which decide its turn while it waits."""

    client: str = ""
    """The name of the client's API key; all clients without a key are one."""
    prompt_tokens: int = 0
    """Estimated tokens of its prompt."""
    urgency: Urgency = NORMAL
    queue_until: float = math.inf
    """The time, by the clock of the event loop, at which it gives up waiting for its first turn."""


NO_TERMS = AdmissionTerms()


def prompt_tokens(source: Input) -> int:
    """Estimate the tokens of a prompt. Those of token ids are known."""
    match source:
        case TextInput():
            return _tokens(len(source.text))
        case ChatInput():
            return _tokens(len(source.tools_json) + sum(map(_characters, source.messages)))
        case InfillInput():
            return _tokens(len(source.prefix) + len(source.suffix))
        case _:
            return len(source.tokens)


def _tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def _characters(message: Message) -> int:
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning) + calls
