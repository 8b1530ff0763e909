"""Answers of `/v1/classify`, in parts of one text each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from gateway.generation.delta import OutputDelta, TokenCounts
from gateway.generation.pooled.vectors import numbers, vectors
from gateway.openai.embeddings.answer import list_answer
from gateway.streaming import sse
from gateway.streaming.dialect import AnswerHead

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ClassifyAnswer:
    """Implements `gateway.streaming.dialect.AnswerRenderer` for the texts of one request."""

    names: Sequence[str]
    """Those of the labels."""
    content_type = sse.CONTENT_TYPE
    keep_alive = sse.WAITING

    def answer_id(self, token: str) -> str:
        return f"classify-{token}"

    def events(self, head: AnswerHead) -> NoReturn:
        """Raises `TypeError`: no field of a body asks for a stream."""
        raise TypeError("classes are not streamed")

    def whole(
        self, head: AnswerHead, deltas: Sequence[OutputDelta], counts: TokenCounts, *, continued: bool
    ) -> Iterator[bytes]:
        found = vectors(deltas)
        parts = (self._object(index, numbers(found[index])) for index in sorted(found))
        return list_answer(head, "data", parts, counts, continued=continued)

    def _object(self, index: int, values: Sequence[float]) -> bytes:
        best = max(range(len(values)), key=values.__getitem__)
        return _encode({"index": index, "label": self.names[best], "probs": values, "num_classes": len(values)})
