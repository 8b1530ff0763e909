"""Messages and chunks of a chat, as OpenAI's API writes them."""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from cli.client.model_client import Piece
from cli.config.errors import CommandFailed
from gateway.generation.delta import ReasoningDelta, ToolCallDelta
from protocol.request import Image, Message


def message_body(message: Message, images: Sequence[Image] = ()) -> dict[str, Any]:
    """Return a message in the form of the API, with its images of `images`. Fields without a value are left out."""
    content: Any = [*_parts(message, images)] if message.images else message.content
    body: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning:
        body["reasoning_content"] = message.reasoning
    if message.tool_calls:
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        body["tool_call_id"] = message.tool_call_id
    return body


def _parts(message: Message, images: Sequence[Image]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a message with images, in order."""
    begin = 0
    for place in message.images:
        if place.at > begin:
            yield {"type": "text", "text": message.content[begin : place.at]}
        begin = place.at
        image = images[place.image]
        url = f"data:image/{image.format};base64,{base64.b64encode(image.data).decode()}"
        yield {"type": "image_url", "image_url": {"url": url, "detail": image.detail}}
    if begin < len(message.content):
        yield {"type": "text", "text": message.content[begin:]}


def pieces_of(choice: dict[str, Any]) -> list[Piece]:
    """Return what a choice of a chunk adds to the answer. Raises `CommandFailed` for a choice of another form."""
    try:
        return list(_pieces(choice))
    except (AttributeError, TypeError, ValueError) as error:
        raise CommandFailed("the server sent a chunk that is not one of OpenAI's API; check --url") from error


def _pieces(choice: dict[str, Any]) -> Iterator[Piece]:
    """Yield the pieces. Servers call reasoning by either of two names."""
    delta = choice.get("delta") or {}
    if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
        yield ReasoningDelta(0, str(reasoning))
    if text := choice.get("text") or delta.get("content"):
        yield str(text)
    for position, call in enumerate(delta.get("tool_calls") or ()):
        function = call.get("function") or {}
        yield ToolCallDelta(
            0,
            call=int(position if call.get("index") is None else call["index"]),
            id=str(call.get("id") or ""),
            name=str(function.get("name") or ""),
            arguments=str(function.get("arguments") or ""),
        )
