"""Answers of `/v1/embeddings`, in parts of one vector each."""

from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Sequence
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


def list_answer(
    head: AnswerHead, name: str, parts: Iterable[bytes], counts: TokenCounts, *, continued: bool
) -> Iterator[bytes]:
    """Write an answer with a list of this name, in parts: encoded values, with commas between those of one part."""
    yield _encode(head_fields("list", head))[:-1] + b',"%s":[' % name.encode()
    for place, part in enumerate(parts):
        yield (b"," if place else b"") + part
    yield b"]," + _encode(token_usage(counts) | extension(continued))[1:]


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
        found = vectors(deltas)
        parts = (self._object(index, found[index]) for index in sorted(found))
        return list_answer(head, "data", parts, counts, continued=continued)

    def _object(self, index: int, vector: bytes) -> bytes:
        value = b'"%s"' % b2a_base64(vector, newline=False) if self.base64 else _encode(numbers(vector))
        return b'{"object":"embedding","index":%d,"embedding":%s}' % (index, value)
