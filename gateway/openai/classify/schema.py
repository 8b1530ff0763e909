"""The body and the answer of `/v1/classify`, as vLLM and SGLang have them."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.openai.answer_schema import BatonExtension
from gateway.openai.embeddings.schema import EmbeddingUsage, Truncation
from gateway.openai.ignored import Label
from gateway.openai.schema import Prompt
from protocol.bounds import MAX_NAME, Name


class ClassifyBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/classify`. `input` is required: a text, texts, token ids or lists of them."""

    model: Name | None = None
    input: Prompt | None = None
    use_activation: bool | None = None
    """False asks for logits in place of probabilities."""
    truncate_prompt_tokens: Truncation | None = None
    add_special_tokens: bool | None = None
    user: Label | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    # Refused when they would change something.
    activation: Any = None
    messages: Any = None
    mm_processor_kwargs: Any = None
    priority: Any = None
    softmax: Any = None


class ClassObject(Struct, forbid_unknown_fields=True):
    """The classes of one text."""

    index: int
    label: str
    """The name of the most probable one."""
    probs: list[float]
    """The probability of each label, or its logit."""
    num_classes: int


class ClassList(Struct, forbid_unknown_fields=True):
    """The answer of `/v1/classify`."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    system_fingerprint: str | None
    data: list[ClassObject]
    usage: EmbeddingUsage
    baton: BatonExtension | UnsetType = UNSET
