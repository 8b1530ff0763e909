"""Input items: messages, reasoning, calls of functions and their outputs."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from protocol.bounds import MAX_NAME, Text
from protocol.request import ImageDetail

MAX_PARTS = 256

ItemLabel = Annotated[str, Meta(max_length=MAX_NAME)]
RequiredLabel = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


class ItemPart(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, gc=False):
    """A part of an item's content. All kinds but `input_image` are text. `annotations` and `logprobs` of earlier
    answers have no effect, and prompts are cached without breakpoints."""

    type: Literal["input_text", "input_image", "output_text", "refusal", "reasoning_text", "summary_text"]
    text: Text | None = None
    refusal: Text | None = None
    image_url: str | None = None
    """The URL of an image, which may be a data URL."""
    detail: ImageDetail | None = None
    # Refused when set: there are no files here.
    file_id: Any = None
    annotations: Any = None
    logprobs: Any = None
    prompt_cache_breakpoint: Any = None


Content = Text | Annotated[tuple[ItemPart, ...], Meta(max_length=MAX_PARTS)]


class InputItem(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, rename={"asynchronous": "async"}):
    """One item. Its `type` decides which fields it has, see `gateway.responses.items.item.FIELDS`. An item without a
    type is a message, or, with nothing but an `id`, a reference."""

    type: Literal["message", "function_call", "function_call_output", "reasoning", "item_reference"] | None = None
    id: ItemLabel | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    call_id: RequiredLabel | None = None
    name: RequiredLabel | None = None
    arguments: Text | None = None
    output: Content | None = None
    summary: Annotated[tuple[ItemPart, ...], Meta(max_length=MAX_PARTS)] | None = None
    encrypted_content: Text | None = None
    # Refused when they would change something: see `gateway.responses.unsupported`.
    asynchronous: Any = None
    caller: Any = None
    namespace: Any = None
