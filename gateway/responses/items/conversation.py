"""Turns items into the messages of a chat."""

from gateway.errors import invalid
from gateway.generation.broken_calls import is_object
from gateway.generation.tools import PastCalls
from gateway.images.sources import GivenImages
from gateway.responses.items.input_schema import InputItem
from gateway.responses.items.item import check_item, kind_of, mixed_of, reasoning_of, text_of
from protocol.bounds import MAX_MESSAGES, MAX_TEXT, MAX_TOOL_CALLS
from protocol.request import Message, ToolCall


class MessageBuilder:
    """The messages of a conversation, built item by item. Reasoning, text and calls of the assistant that follow each
    other are one message, as chat templates expect."""

    def __init__(self, instructions: str | None = None) -> None:
        self.images = GivenImages()
        """The images of its messages."""
        self._messages: list[Message] = []
        self._reasoning: list[str] = []
        self._reasoning_size = 0
        """Its characters, with a line break after each text."""
        self._text: str | None = None
        self._calls: list[ToolCall] = []
        self._past = PastCalls()
        self._call_ids: set[str] = set()
        if instructions:
            self._messages.append(Message("system", instructions))

    def add(self, item: InputItem, at: str) -> None:
        """Add an item, whose path is `at`. Raises `RequestError`."""
        check_item(item, at)
        match kind_of(item):
            case "reasoning":
                self._begin_turn()
                self._add_reasoning(item, at)
            case "function_call":
                self._add_call(item, at)
            case "function_call_output":
                self._add_output(item, at)
            case _ if item.role == "assistant":
                self._begin_turn()
                self._text = text_of(item.content, f"{at}.content")
            case _:
                self._end_turn()
                role = "system" if item.role == "developer" else str(item.role)
                if role == "user":
                    text, places = mixed_of(item.content, f"{at}.content", self.images)
                else:
                    text, places = text_of(item.content, f"{at}.content"), ()
                self._messages.append(Message(role, text, images=places))

    def messages(self, field: str) -> tuple[Message, ...]:
        """All messages. Raises `RequestError` naming `field` when there are none, or too many."""
        self._end_turn()
        if not self._messages:
            raise invalid(field, f"`{field}` has no item")
        if len(self._messages) > MAX_MESSAGES:
            raise invalid(field, f"the conversation has {len(self._messages)} messages; {MAX_MESSAGES} are allowed")
        return tuple(self._messages)

    def _add_reasoning(self, item: InputItem, at: str) -> None:
        text = reasoning_of(item, at)
        self._reasoning.append(text)
        self._reasoning_size += len(text) + 1
        if self._reasoning_size > MAX_TEXT + 1:
            raise invalid(at, f"`{at}`: the reasoning before one message has over {MAX_TEXT} characters; leave it out")

    def _add_call(self, item: InputItem, at: str) -> None:
        if item.status == "incomplete" and not is_object(item.arguments or "{}"):
            return  # a call that broke off, which has no result
        if len(self._calls) == MAX_TOOL_CALLS:
            raise invalid(at, f"`{at}` is one of over {MAX_TOOL_CALLS} calls in a row")
        call_id = item.call_id or ""
        if call_id in self._call_ids:
            raise invalid(f"{at}.call_id", f"`{at}.call_id` is the call_id of an earlier function_call as well")
        self._calls.append(self._past.call(call_id, item.name or "", item.arguments or "", f"{at}.arguments"))
        self._call_ids.add(call_id)

    def _add_output(self, item: InputItem, at: str) -> None:
        if item.call_id not in self._call_ids:
            field = f"{at}.call_id"
            raise invalid(field, f"`{field}`: no function_call before it has this call_id")
        self._end_turn()
        text, places = mixed_of(item.output, f"{at}.output", self.images)
        self._messages.append(Message("tool", text, tool_call_id=item.call_id or "", images=places))

    def _begin_turn(self) -> None:
        """Begin another message of the assistant if this one has more than reasoning."""
        if self._text is not None or self._calls:
            self._end_turn()

    def _end_turn(self) -> None:
        if self._text is not None or self._calls or self._reasoning:
            reasoning = "\n".join(self._reasoning)
            self._messages.append(
                Message("assistant", self._text or "", tool_calls=tuple(self._calls), reasoning=reasoning)
            )
        self._reasoning, self._text, self._calls = [], None, []
        self._reasoning_size = 0
