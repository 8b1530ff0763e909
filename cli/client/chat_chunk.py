"""Messages and chunks of a chat, as OpenAI's API writes them."""

from collections.abc import Iterator
from typing import Any

from cli.client.model_client import Piece
from cli.config.errors import CommandFailed
from gateway.generation.delta import ReasoningDelta, ToolCallDelta
from protocol.request import Message


def message_body(message: Message) -> dict[str, Any]:
    """Return a message in the form of the API. Fields without a value are left out."""
    body: dict[str, Any] = {"role": message.role, "content": message.content}
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
