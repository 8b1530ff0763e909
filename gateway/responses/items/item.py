"""Items of a conversation: which fields each kind has, their text, and the form in which they are listed."""

from typing import Any

from gateway.errors import invalid
from gateway.images.sources import GivenImages, MixedContent
from gateway.responses.ids import input_item_id
from gateway.responses.items.input_schema import Content, InputItem, ItemPart
from gateway.responses.items.reasoning import decode_reasoning
from gateway.responses.unsupported import refuse_options
from protocol.bounds import MAX_TEXT
from protocol.errors import ErrorCode
from protocol.request import ImagePlace

FIELDS: dict[str, tuple[str, ...]] = {
    "message": ("role", "content", "phase"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "name", "output"),
    "reasoning": ("summary", "content", "encrypted_content"),
    "item_reference": (),
}
"""The fields of each kind of item, besides `type`, `id` and `status`."""
REQUIRED: dict[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
    "item_reference": ("id",),
}
_FOREIGN = {
    kind: tuple({name for names in FIELDS.values() for name in names}.difference(own)) for kind, own in FIELDS.items()
}
"""The fields that each kind of item does not have."""


def kind_of(item: InputItem) -> str:
    """The kind of an item. Clients may leave it out of messages and references."""
    if item.type is not None:
        return item.type
    bare = item.id is not None and item.role is None and item.content is None
    return "item_reference" if bare else "message"


def check_item(item: InputItem, at: str) -> None:
    """Raise `RequestError` for an item with fields that are missing, unsupported or of another kind. `at` is its
    path."""
    kind = kind_of(item)
    refuse_options(item, f"{at}.")
    for name in REQUIRED[kind]:
        if getattr(item, name) is None:
            raise invalid(f"{at}.{name}", f"`{at}.{name}` is required in an item of type {kind}")
    for name in _FOREIGN[kind]:
        if getattr(item, name) is not None:
            raise invalid(f"{at}.{name}", f"`{at}.{name}` does not belong into an item of type {kind}")


def text_of(content: Content | None, at: str) -> str:
    """The text of an item's content. Raises `RequestError`."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    text = "\n".join(_part_text(part, f"{at}[{index}]") for index, part in enumerate(content))
    return _bounded(text, at)


def mixed_of(content: Content | None, at: str, images: GivenImages) -> tuple[str, tuple[ImagePlace, ...]]:
    """The text of an item's content, and the places of images in it, which are added to `images`. Raises
    `RequestError`."""
    if content is None or isinstance(content, str) or all(part.type != "input_image" for part in content):
        return text_of(content, at), ()
    mixed = MixedContent()
    for index, part in enumerate(content):
        path = f"{at}[{index}]"
        if part.type == "input_image":
            mixed.add_image(_image(part, path, images))
        else:
            mixed.add_text(_part_text(part, path))
    return _bounded(mixed.text, at), mixed.places


def _bounded(text: str, at: str) -> str:
    if len(text) > MAX_TEXT:
        raise invalid(at, f"`{at}` has over {MAX_TEXT} characters")
    return text


def _image(part: ItemPart, at: str, images: GivenImages) -> int:
    """Add the image of a part, and return its index."""
    if part.file_id:
        field = f"{at}.file_id"
        text = f"`{field}` is not supported: there are no files here; send `image_url`"
        raise invalid(field, text, ErrorCode.UNSUPPORTED)
    _check_part(part, at, {"image_url"})
    return images.add_url(part.image_url or "", f"{at}.image_url", part.detail or "auto")


def _part_text(part: ItemPart, at: str) -> str:
    if part.type == "input_image":
        raise invalid(at, f"`{at}`: only messages of the user and outputs of functions have images")
    name = "refusal" if part.type == "refusal" else "text"
    _check_part(part, at, {name})
    text: str = getattr(part, name)
    return text


def _check_part(part: ItemPart, at: str, required: set[str]) -> None:
    """Raise `RequestError` for a part without what its type requires, or with what belongs to another type."""
    for name in ("text", "refusal", "image_url"):
        given = getattr(part, name) is not None
        if given and name not in required:
            raise invalid(f"{at}.{name}", f"`{at}.{name}` does not belong into a part of type {part.type}")
        if not given and name in required:
            raise invalid(f"{at}.{name}", f"`{at}.{name}` is required in a part of type {part.type}")


def reasoning_of(item: InputItem, at: str) -> str:
    """The text of a reasoning item: its content, or else what its encrypted content or its summary has. Raises
    `RequestError`."""
    if text := text_of(item.content, f"{at}.content"):
        return text
    if item.encrypted_content:
        decoded = decode_reasoning(item.encrypted_content)
        if decoded is None:
            field = f"{at}.encrypted_content"
            raise invalid(field, f"`{field}` is not from this server; leave the item out")
        return decoded
    return text_of(item.summary, f"{at}.summary")


def listed(item: InputItem, response: str, index: int) -> dict[str, Any]:
    """An item of the input of a response, with an id and with all fields that clients expect."""
    kind = kind_of(item)
    fields: dict[str, Any] = {
        "id": item.id or input_item_id(kind, response, index),
        "type": kind,
        "status": item.status or "completed",
    }
    match kind:
        case "message":
            fields |= {"role": item.role, "content": _listed_content(item)}
            if item.phase is not None:
                fields["phase"] = item.phase
        case "function_call":
            fields |= {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
        case "function_call_output":
            fields |= {"call_id": item.call_id, "output": item.output}
        case "reasoning":
            text = item.content
            content = [{"type": "reasoning_text", "text": text}] if isinstance(text, str) else text or []
            fields |= {"summary": item.summary or [], "content": content}
            if item.encrypted_content is not None:
                fields["encrypted_content"] = item.encrypted_content
    return fields


def _listed_content(item: InputItem) -> Any:
    if not isinstance(item.content, str):
        return item.content
    if item.role == "assistant":
        return [{"type": "output_text", "text": item.content, "annotations": []}]
    return [{"type": "input_text", "text": item.content}]
