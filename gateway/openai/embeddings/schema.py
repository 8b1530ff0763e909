"""The body and the answer of `/v1/embeddings`."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.openai.answer_schema import BatonExtension
from gateway.openai.ignored import Label
from gateway.openai.schema import Prompt
from protocol.bounds import MAX_NAME, MAX_TOKENS, MAX_VECTOR_WIDTH, Name

Truncation = Annotated[int, Meta(ge=-1, le=MAX_TOKENS)]
"""Tokens of a longer text that are kept, the first ones; -1 keeps as many as the model takes."""


class EmbeddingsBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/embeddings`. `input` is required: a text, texts, token ids or lists of them. Those after `user`
    are vLLM's and sentence-transformers': `prompt_name` and `input_type` name a prompt of the checkpoint."""

    model: Name | None = None
    input: Prompt | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=MAX_VECTOR_WIDTH)] | None = None
    user: Label | None = None
    truncate_prompt_tokens: Truncation | None = None
    add_special_tokens: bool | None = None
    normalize: bool | None = None
    input_type: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    prompt_name: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    # Refused when they would change something.
    embed_dtype: Any = None
    endianness: Any = None
    messages: Any = None
    mm_processor_kwargs: Any = None
    use_activation: Any = None


class EmbeddingObject(Struct, forbid_unknown_fields=True):
    """The vector of one text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    """Numbers; or in base64, float32 in little-endian order."""


class EmbeddingUsage(Struct, forbid_unknown_fields=True):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct, forbid_unknown_fields=True):
    """The answer of `/v1/embeddings`."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    system_fingerprint: str | None
    data: list[EmbeddingObject]
    usage: EmbeddingUsage
    baton: BatonExtension | UnsetType = UNSET
