"""The parts of one answer, put together from its pieces."""

from cli.client.model_client import Piece
from cli.config.errors import CommandFailed
from gateway.generation.delta import ReasoningDelta, ToolCallDelta
from protocol.request import ToolCall


class ReplyParts:
    """Collects text, reasoning and tool calls."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, list[ToolCallDelta]] = {}

    def add(self, piece: Piece) -> None:
        match piece:
            case str():
                self._text.append(piece)
            case ReasoningDelta(text=text):
                self._reasoning.append(text)
            case ToolCallDelta(call=call):
                self._calls.setdefault(call, []).append(piece)

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def calls(self) -> tuple[ToolCall, ...]:
        """Return the calls. One without an id gets one. Raises `CommandFailed` for a call without a name."""
        calls = []
        for number, parts in sorted(self._calls.items()):
            name = "".join(part.name for part in parts)
            if not name:
                raise CommandFailed("the model called a tool without a name; ask again")
            call_id = next((part.id for part in parts if part.id), f"call_{number}")
            calls.append(ToolCall(call_id, name, "".join(part.arguments for part in parts) or "{}"))
        return tuple(calls)
