"""Log-probabilities in OpenAI's formats, one for chats and one for completions."""

import codecs
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from protocol.events import Logprobs, TokenLogprob

PART_TOKENS = 64
"""Tokens of one part of a whole answer: with all that may be reported of them, 80 KB."""
_encode = msgspec.json.Encoder().encode


def chat_logprobs(reports: Sequence[Logprobs]) -> dict[str, Any]:
    """The `logprobs` object of a chat's choice."""
    content = [_named(each.sampled) | {"top_logprobs": [_named(likely) for likely in each.top]} for each in reports]
    return {"content": content, "refusal": None}


def chat_parts(reports: Sequence[Logprobs]) -> Iterator[bytes]:
    """Write the same object in parts."""
    yield b'{"content":['
    for begin in range(0, len(reports), PART_TOKENS):
        part = chat_logprobs(reports[begin : begin + PART_TOKENS])["content"]
        yield (b"," if begin else b"") + _encode(part)[1:-1]
    yield b'],"refusal":null}'


class CompletionLogprobs:
    """Writes the `logprobs` objects of one choice of a completion. Its offsets continue from chunk to chunk."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._characters = 0

    def write(self, reports: Sequence[Logprobs]) -> dict[str, Any]:
        """The object for these tokens: each with its offset in the choice's text and the most likely ones beside it."""
        offsets = []
        for each in reports:
            offsets.append(self._characters)
            self._characters += len(self._decode(each.sampled.piece))
        return {
            "tokens": [_text(each.sampled) for each in reports],
            "token_logprobs": [each.sampled.logprob for each in reports],
            # Of tokens with the same text the most likely one is kept.
            "top_logprobs": [
                {_text(likely): likely.logprob for likely in reversed((*each.top, each.sampled))} for each in reports
            ],
            "text_offset": offsets,
        }


def completion_parts(reports: Sequence[Logprobs]) -> Iterator[bytes]:
    """Write the `logprobs` object of a whole choice of a completion in parts: one list of it after the other."""
    for place, field in enumerate(("tokens", "token_logprobs", "top_logprobs", "text_offset")):
        yield (b',"%s":[' if place else b'{"%s":[') % field.encode()
        writer = CompletionLogprobs()
        for begin in range(0, len(reports), PART_TOKENS):
            part = writer.write(reports[begin : begin + PART_TOKENS])[field]
            yield (b"," if begin else b"") + _encode(part)[1:-1]
        yield b"]"
    yield b"}"


def _named(likely: TokenLogprob) -> dict[str, Any]:
    text = likely.piece.decode("utf-8", "replace")
    return {"token": text, "logprob": likely.logprob, "bytes": list(likely.piece)}


def _text(likely: TokenLogprob) -> str:
    """The token's text. Bytes that are not valid UTF-8 are spelled out, as the format has no other place for them."""
    try:
        return likely.piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in likely.piece)
