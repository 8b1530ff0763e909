"""The bodies and answers of `/v1/rerank`, as the clients of Cohere, Jina and vLLM send and read them."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.generation.pooled.texts import MAX_INPUTS
from gateway.openai.answer_schema import BatonExtension
from gateway.openai.embeddings.schema import EmbeddingUsage, Truncation
from gateway.openai.ignored import Label
from protocol.bounds import MAX_INSTRUCTION, MAX_NAME, Name, Text

Instruction = Annotated[str, Meta(min_length=1, max_length=MAX_INSTRUCTION)]
"""The text by which a decoder judges a pair, in place of that of its checkpoint."""


class RerankDocument(Struct, forbid_unknown_fields=True):
    """A document as an object."""

    text: Text


class RerankBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/rerank`. Without `top_n` all documents are in the answer."""

    model: Name | None = None
    query: Text
    documents: Annotated[tuple[Text | RerankDocument, ...], Meta(min_length=1)]
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None
    truncate_prompt_tokens: Truncation | None = None
    user: Label | None = None
    instruction: Instruction | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    # Refused when they would change something.
    max_chunks_per_doc: Any = None
    max_tokens_per_doc: Any = None
    overlap_tokens: Any = None
    rank_fields: Any = None
    truncation: Any = None
    mm_processor_kwargs: Any = None
    activation: Any = None
    use_activation: Any = None


class RerankResult(Struct, forbid_unknown_fields=True):
    """One document; those of an answer are in the order of their scores, the highest first."""

    index: int
    """Its place among the documents of the request."""
    relevance_score: float
    """The score of a classifier of pairs; or the cosine of the embeddings of query and document."""
    document: RerankDocument | UnsetType = UNSET


class RerankAnswerObject(Struct, forbid_unknown_fields=True):
    """The answer of `/v1/rerank`."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    system_fingerprint: str | None
    results: list[RerankResult]
    usage: EmbeddingUsage
    baton: BatonExtension | UnsetType = UNSET


class ComparisonObject(Struct, forbid_unknown_fields=True):
    """The score of two texts."""

    index: int
    object: Literal["score"]
    score: float


class ComparisonList(Struct, forbid_unknown_fields=True):
    """The answer of `/v1/score` for texts that are compared."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    system_fingerprint: str | None
    data: list[ComparisonObject]
    usage: EmbeddingUsage
    baton: BatonExtension | UnsetType = UNSET


MAX_DOCUMENTS = MAX_INPUTS - 1
"""Documents of one request: the query is one more text for a model that makes embeddings."""
