"""Answers of `/v1/rerank`, and of `/v1/score` for texts that are compared."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from gateway.generation.delta import OutputDelta, TokenCounts
from gateway.openai.embeddings.answer import list_answer
from gateway.openai.rerank.similarity import PairScores
from gateway.streaming import sse
from gateway.streaming.dialect import AnswerHead

_encode = msgspec.json.Encoder().encode
PART = 256
"""Scores of one part of an answer."""


@dataclass(frozen=True, slots=True)
class ComparisonAnswer:
    """Implements `gateway.streaming.dialect.AnswerRenderer` for `/v1/score`."""

    scores: PairScores
    content_type = sse.CONTENT_TYPE
    keep_alive = sse.WAITING

    def answer_id(self, token: str) -> str:
        return f"score-{token}"

    def events(self, head: AnswerHead) -> NoReturn:
        """Raises `TypeError`: no field of a body asks for a stream."""
        raise TypeError("scores are not streamed")

    def whole(
        self, head: AnswerHead, deltas: Sequence[OutputDelta], counts: TokenCounts, *, continued: bool
    ) -> Iterator[bytes]:
        values = [{"index": index, "object": "score", "score": score} for index, score in enumerate(self.scores.values)]
        return list_answer(head, "data", _parts(values), counts, continued=continued)


@dataclass(frozen=True, slots=True)
class RerankAnswer:
    """Implements `gateway.streaming.dialect.AnswerRenderer` for `/v1/rerank`."""

    scores: PairScores
    top: int | None
    documents: Sequence[str] | None
    """The documents, if the answer repeats them."""
    content_type = sse.CONTENT_TYPE
    keep_alive = sse.WAITING

    def answer_id(self, token: str) -> str:
        return f"rerank-{token}"

    def events(self, head: AnswerHead) -> NoReturn:
        """Raises `TypeError`: no field of a body asks for a stream."""
        raise TypeError("ranks are not streamed")

    def whole(
        self, head: AnswerHead, deltas: Sequence[OutputDelta], counts: TokenCounts, *, continued: bool
    ) -> Iterator[bytes]:
        values = self.scores.values
        order = sorted(range(len(values)), key=lambda index: (-values[index], index))[: self.top]
        results = [
            {"index": index, "relevance_score": values[index]}
            | ({} if self.documents is None else {"document": {"text": self.documents[index]}})
            for index in order
        ]
        return list_answer(head, "results", _parts(results), counts, continued=continued)


def _parts(values: Sequence[object]) -> Iterator[bytes]:
    for at in range(0, len(values), PART):
        yield _encode(values[at : at + PART])[1:-1]
