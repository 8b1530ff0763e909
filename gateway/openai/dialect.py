"""OpenAI's API as a dialect: completions, chat completions, embeddings and models; and queries, scores, ranks and
classes of texts beside it."""

import time

from gateway.http.conventions import HttpConventions
from gateway.openai.classify.decoding import ClassifyDecoder
from gateway.openai.decoding import RequestDecoder
from gateway.openai.embeddings.decoding import EmbeddingsDecoder
from gateway.openai.errors import OpenAIErrors
from gateway.openai.models import Models
from gateway.openai.prompt_queries import PromptQueryDecoder
from gateway.openai.rerank.decoding import ComparisonDecoder
from gateway.openai.scores.decoding import ScoreDecoder
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Dialect

CLASSIFY_PATHS = ("/v1/classify", "/classify")
"""The paths of SGLang's clients and vLLM's."""
RERANK_PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
"""The paths of Jina's clients, Cohere's and vLLM's."""


def openai_dialect(router: Router, settings: GatewaySettings) -> Dialect:
    """The dialect over a router's models."""
    decoder = RequestDecoder(settings)
    comparison = ComparisonDecoder(router, settings)
    score = ScoreDecoder(settings, comparison.score).score
    return Dialect(
        conventions=HttpConventions(OpenAIErrors()),
        generation={
            "/v1/completions": decoder.completion,
            "/v1/chat/completions": decoder.chat,
            "/v1/embeddings": EmbeddingsDecoder(settings).embeddings,
            **dict.fromkeys(CLASSIFY_PATHS, ClassifyDecoder(router, settings).classify),
            "/v1/score": score,
            "/score": score,
            **dict.fromkeys(RERANK_PATHS, comparison.rerank),
        },
        queries=PromptQueryDecoder().paths(),
        routes=Models(router, created=int(time.time())).routes(),
    )
