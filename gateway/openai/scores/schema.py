"""The body and the answer of `/v1/score`."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.openai.answer_schema import BatonExtension, UsageObject
from gateway.openai.embeddings.schema import Truncation
from gateway.openai.ignored import Label
from gateway.openai.schema import Prompt
from protocol.bounds import MAX_INSTRUCTION, MAX_NAME, Name, Text

Texts = Text | Annotated[tuple[Text, ...], Meta(min_length=1)]


class ScoreBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/score`: the log-likelihood of each `completion` after its `prompt`, both of the same kind; without a
    `completion`, of each `prompt`. Or in place of both the scores of `text_1` and `text_2`, as vLLM has them: of one
    text with each of others, or of each with the other in its place."""

    model: Name | None = None
    prompt: Prompt | None = None
    completion: Prompt | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    user: Label | None = None
    # Texts that are compared, in place of those above.
    text_1: Texts | None = None
    text_2: Texts | None = None
    truncate_prompt_tokens: Truncation | None = None
    instruction: Annotated[str, Meta(min_length=1, max_length=MAX_INSTRUCTION)] | None = None


class ScoreObject(Struct, forbid_unknown_fields=True):
    """The log-likelihood of one text."""

    index: int
    object: Literal["score"]
    tokens: list[int]
    log_likelihoods: list[float]
    """One for each of the tokens."""
    total: float
    """The sum of them."""
    perplexity: float | None
    """The exponential of the mean negative log-likelihood; null without a token, and beyond the largest number."""
    greedy: bool
    """Each token is the most likely one in its place."""


class ScoreList(Struct, forbid_unknown_fields=True):
    """The answer of `/v1/score`."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    system_fingerprint: str | None
    data: list[ScoreObject]
    usage: UsageObject
    baton: BatonExtension | UnsetType = UNSET
