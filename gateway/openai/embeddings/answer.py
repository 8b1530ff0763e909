"""Answers of `/v1/embeddings`, in parts of one vector each."""

from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from gateway.generation.delta import OutputDelta, TokenCounts
from gateway.generation.pooled.vectors import numbers, vectors
from gateway.openai.fields import extension, head_fields
from gateway.streaming import sse
from gateway.streaming.dialect import AnswerHead

_encode = msgspec.json.Encoder().encode


def token_usage(counts: TokenCounts) -> dict[str, dict[str, int]]:
    """The `usage` field of an answer without generated tokens."""
    return {"usage": {"prompt_tokens": counts.prompt, "total_tokens": counts.prompt}}


@dataclass(frozen=True, slots=True)
class EmbeddingsAnswer:
    """Implements `gateway.streaming.dialect.AnswerRenderer` for the texts of one request."""

    base64: bool = False
    content_type = sse.CONTENT_TYPE
    keep_alive = sse.WAITING

    def answer_id(self, token: str) -> str:
        return f"embd-{token}"

    def events(self, head: AnswerHead) -> NoReturn:
        """Raises `TypeError`: no field of a body asks for a stream."""
        raise TypeError("embeddings are not streamed")

    def whole(
        self, head: AnswerHead, deltas: Sequence[OutputDelta], counts: TokenCounts, *, continued: bool
    ) -> Iterator[bytes]:
        yield _encode(head_fields("list", head))[:-1] + b',"data":['
        found = vectors(deltas)
        for place, index in enumerate(sorted(found)):
            begin = b'%s{"object":"embedding","index":%d,"embedding":' % (b"," if place else b"", index)
            vector = found[index]
            value = b'"%s"' % b2a_base64(vector, newline=False) if self.base64 else _encode(numbers(vector))
            yield begin + value + b"}"
        yield b"]," + _encode(token_usage(counts) | extension(continued))[1:]
