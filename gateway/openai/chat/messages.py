"""Turns the messages of a chat completion into those of a generation request."""

from collections.abc import Sequence

from gateway.errors import invalid
from gateway.generation.tools import PastCalls
from gateway.images.sources import GivenImages, MixedContent
from gateway.openai.schema import ChatMessage, ImagePart, TextPart
from gateway.openai.unsupported import refuse_set
from protocol.bounds import MAX_TEXT
from protocol.request import ImagePlace, Message, ToolCall

ONLY_IN = {
    "reasoning": "assistant",
    "reasoning_content": "assistant",
    "refusal": "assistant",
    "tool_calls": "assistant",
    "tool_call_id": "tool",
}
"""Fields of a message that only one role has."""


def decode_messages(messages: Sequence[ChatMessage], images: GivenImages) -> tuple[Message, ...]:
    """Return the messages for the worker. Their images are added to `images`. Raises `RequestError` naming the
    field."""
    past = PastCalls()
    known: set[str] = set()
    """The ids of the calls so far."""
    found = []
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        _check_fields(message, at)
        if message.role == "tool":
            _check_result(message, known, at)
        calls = _calls(message, past, at)
        known.update(call.id for call in calls)
        content, places = _content(message, at, images)
        found.append(
            Message(
                "system" if message.role == "developer" else message.role,
                content,
                message.name or "",
                calls,
                message.tool_call_id or "",
                _reasoning(message, at),
                places,
            )
        )
    return tuple(found)


def _check_fields(message: ChatMessage, at: str) -> None:
    refuse_set(message, f"{at}.")
    for name, role in ONLY_IN.items():
        if getattr(message, name) and message.role != role:
            raise invalid(f"{at}.{name}", f"`{at}.{name}` goes with the role `{role}` only")


def _check_result(message: ChatMessage, known: set[str], at: str) -> None:
    field = f"{at}.tool_call_id"
    if not message.tool_call_id:
        raise invalid(field, f"`{field}` is required: the id of the call that the message answers")
    if message.tool_call_id not in known:
        raise invalid(field, f"`{field}` is not the id of a tool call in an earlier message of the assistant")


def _calls(message: ChatMessage, past: PastCalls, at: str) -> tuple[ToolCall, ...]:
    calls: dict[str, ToolCall] = {}
    for index, call in enumerate(message.tool_calls or ()):
        path = f"{at}.tool_calls[{index}]"
        if call.id in calls:
            raise invalid(f"{path}.id", f"`{path}.id` is the id of another call of the message as well")
        calls[call.id] = past.call(call.id, call.function.name, call.function.arguments, f"{path}.function.arguments")
    return tuple(calls.values())


def _content(message: ChatMessage, at: str, images: GivenImages) -> tuple[str, tuple[ImagePlace, ...]]:
    """Return the text of a message, and the places of images in it."""
    content = message.content
    places: tuple[ImagePlace, ...] = ()
    if content is None:
        if message.role != "assistant":
            raise invalid(f"{at}.content", f"`{at}.content` is required; only the assistant's may be null")
        return message.refusal or "", ()
    if isinstance(content, str):
        text = content
    elif any(isinstance(part, ImagePart) for part in content):
        text, places = _mixed(content, message.role, at, images)
    else:
        text = "\n".join(part.text for part in content if isinstance(part, TextPart))
    if message.refusal:
        text = f"{text}\n{message.refusal}" if text else message.refusal
    if len(text) > MAX_TEXT:
        raise invalid(f"{at}.content", f"`{at}.content` has over {MAX_TEXT} characters")
    return text, places


def _mixed(
    content: Sequence[TextPart | ImagePart], role: str, at: str, images: GivenImages
) -> tuple[str, tuple[ImagePlace, ...]]:
    mixed = MixedContent()
    for index, part in enumerate(content):
        if isinstance(part, TextPart):
            mixed.add_text(part.text)
            continue
        field = f"{at}.content[{index}].image_url"
        if role != "user":
            raise invalid(field, f"`{field}`: only messages of the role `user` have images")
        given = part.image_url
        url, detail = (given, None) if isinstance(given, str) else (given.url, given.detail)
        mixed.add_image(images.add_url(url, field, detail or "auto"))
    return mixed.text, mixed.places


def _reasoning(message: ChatMessage, at: str) -> str:
    """The reasoning, under whichever of its names."""
    if message.reasoning and message.reasoning_content and message.reasoning != message.reasoning_content:
        raise invalid(f"{at}.reasoning", f"`{at}.reasoning` and `{at}.reasoning_content` differ; send one of them")
    return message.reasoning_content or message.reasoning or ""
