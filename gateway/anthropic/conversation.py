"""Messages of content blocks as messages for a chat template."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gateway.anthropic.cache_marks import CacheMarks
from gateway.anthropic.schema import (
    ContentBlock,
    CountBody,
    ImageBlock,
    ImageLink,
    InputMessage,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from gateway.anthropic.unsupported import refuse_unsupported
from gateway.errors import RequestError, invalid
from gateway.generation.tools import PastCalls
from gateway.images.sources import GivenImages, MixedContent
from protocol.bounds import MAX_MESSAGES, MAX_TEXT, MAX_TOOL_CALLS
from protocol.request import ImagePlace, Message, ToolCall

ERROR_PREFIX = "Error: "
"""Precedes the result of a call that failed, as templates have no other place for `is_error`."""


def prompt_messages(body: CountBody, marks: CacheMarks, images: GivenImages) -> tuple[Message, ...]:
    """The messages of a body, its `system` first. Their images are added to `images`, and their marks to `marks`: those
    of tools count as at the end of the system's message, beside which templates put tools. Raises `RequestError` naming
    the path of a block."""
    turns = PromptTurns(marks, images)
    if body.system:
        turns.add_system(body.system, "system")
    for tool in body.tools or ():
        marks.add(tool.cache_control, 1 if body.system else 0)
    for index, message in enumerate(body.messages):
        turns.add(message, f"messages[{index}].content")
    messages = turns.closed()
    marks.add(body.cache_control, len(messages))
    if len(messages) > MAX_MESSAGES:
        text = f"`messages` has {len(messages)} turns and results of tools; {MAX_MESSAGES} are allowed"
        raise invalid("messages", text)
    return messages


@dataclass(slots=True)
class _Turn:
    """Consecutive messages of one role; `at` is the path of the first. Texts are joined once, however many there
    are."""

    role: str
    at: str
    content: MixedContent = field(default_factory=MixedContent)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> Message:
        if len(self.calls) > MAX_TOOL_CALLS:
            raise invalid(self.at, f"`{self.at}`: the turn has over {MAX_TOOL_CALLS} calls of tools")
        content = _bounded(self.content.text, self.at)
        reasoning = _bounded(_lines(self.thoughts), self.at)
        return Message(
            self.role, content, tool_calls=tuple(self.calls), reasoning=reasoning, images=self.content.places
        )


class PromptTurns:
    """The messages so far. Consecutive ones of the user, or of the assistant, become one: templates expect turns."""

    def __init__(self, marks: CacheMarks, images: GivenImages) -> None:
        self._marks = marks
        self._images = images
        self._messages: list[Message] = []
        self._turn: _Turn | None = None
        """The last turn, which may go on."""
        self._past = PastCalls()
        self._calls: set[str] = set()
        """The ids of all calls so far."""

    def closed(self) -> tuple[Message, ...]:
        """All messages. Raises `RequestError` for a turn that is too large."""
        self._close()
        return tuple(self._messages)

    def add_system(self, content: str | Sequence[TextBlock], at: str) -> None:
        """Add a message of the system. Raises `RequestError`."""
        self._close()
        text = _joined_text(content, at)
        if not isinstance(content, str):
            for index, block in enumerate(content, 1):
                if block.cache_control is not None:
                    self._marks.add(
                        block.cache_control, len(self._messages), len(_lines(b.text for b in content[:index]))
                    )
        self._messages.append(Message("system", text))

    def add(self, message: InputMessage, at: str) -> None:
        """Add a message whose content is at this path. Raises `RequestError`."""
        content = message.content
        blocks = (TextBlock(text=content),) if isinstance(content, str) else content
        if message.role == "system":
            for index, block in enumerate(blocks):
                if not isinstance(block, TextBlock):
                    raise _misplaced(block, "system", f"{at}[{index}]")
            self.add_system([each for each in blocks if isinstance(each, TextBlock)], at)
            return
        if not blocks:
            self._continued(message.role, at)
        for index, block in enumerate(blocks):
            if type(block) is TextBlock and block.citations is None:  # most are, and a path takes longer than the rest
                self._text(message.role, block, at)
                continue
            path = f"{at}[{index}]"
            refuse_unsupported(block, f"{path}.")
            if message.role == "user":
                self._add_of_user(block, path)
            else:
                self._add_of_assistant(block, path)

    def _add_of_user(self, block: ContentBlock, at: str) -> None:
        match block:
            case TextBlock():
                self._text("user", block, at)
            case ImageBlock():
                turn = self._continued("user", at)
                turn.content.add_image(self._image(block, at))
                self._marks.add(block.cache_control, len(self._messages), turn.content.size)
            case ToolResultBlock():
                self._close()
                self._messages.append(self._result(block, at))
                self._marks.add(block.cache_control, len(self._messages))
            case _:
                raise _misplaced(block, "user", at)

    def _add_of_assistant(self, block: ContentBlock, at: str) -> None:
        turn = self._continued("assistant", at)
        match block:
            case TextBlock():
                self._text("assistant", block, at)
            case ThinkingBlock():
                turn.thoughts.append(block.thinking)
            case RedactedThinkingBlock():
                pass
            case ToolUseBlock():
                turn.calls.append(self._call(block, at))
                self._marks.add(block.cache_control, len(self._messages) + 1)  # the turn ends with its calls
            case _:
                raise _misplaced(block, "assistant", at)

    def _text(self, role: str, block: TextBlock, at: str) -> None:
        turn = self._continued(role, at)
        turn.content.add_text(block.text)
        if block.cache_control is not None:
            self._marks.add(block.cache_control, len(self._messages), turn.content.size)

    def _image(self, block: ImageBlock, at: str) -> int:
        """Add an image, and return its index."""
        source = block.source
        if isinstance(source, ImageLink):
            return self._images.add_url(source.url, f"{at}.source.url")
        return self._images.add_base64(source.data, f"{at}.source.data", source.media_type)

    def _result(self, block: ToolResultBlock, at: str) -> Message:
        if block.tool_use_id not in self._calls:
            raise invalid(f"{at}.tool_use_id", f"`{at}.tool_use_id` is the id of no earlier `tool_use`")
        mixed = MixedContent()
        blocks = (TextBlock(text=block.content),) if isinstance(block.content, str) else block.content or ()
        for index, each in enumerate(blocks):
            path = f"{at}.content[{index}]"
            if isinstance(each, ImageBlock):
                mixed.add_image(self._image(each, path))
                continue
            refuse_unsupported(each, f"{path}.")
            mixed.add_text(each.text)
        content, places = mixed.text, mixed.places
        if block.is_error and not content.startswith(ERROR_PREFIX):
            content = ERROR_PREFIX + content
            places = tuple(ImagePlace(each.image, each.at + len(ERROR_PREFIX)) for each in places)
        return Message("tool", _bounded(content, f"{at}.content"), tool_call_id=block.tool_use_id, images=places)

    def _call(self, block: ToolUseBlock, at: str) -> ToolCall:
        if block.id in self._calls:
            raise invalid(f"{at}.id", f"`{at}.id` is the id of another `tool_use` as well")
        self._calls.add(block.id)
        return self._past.of_object(block.id, block.name, block.input, f"{at}.input")

    def _continued(self, role: str, at: str) -> _Turn:
        """The last turn if it has this role, or a new one."""
        if self._turn is None or self._turn.role != role:
            self._close()
            self._turn = _Turn(role, at)
        return self._turn

    def _close(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
        self._turn = None


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(filter(None, texts))


def _joined_text(content: str | Sequence[TextBlock], at: str) -> str:
    if isinstance(content, str):
        return content
    for index, block in enumerate(content):
        refuse_unsupported(block, f"{at}[{index}].")
    return _bounded(_lines(block.text for block in content), at)


def _bounded(text: str, at: str) -> str:
    if len(text) > MAX_TEXT:
        raise invalid(at, f"`{at}` has over {MAX_TEXT} characters")
    return text


def _misplaced(block: ContentBlock, role: str, at: str) -> RequestError:
    kind = block.__struct_config__.tag
    return invalid(f"{at}.type", f"`{at}.type`: a message of the {role} has no `{kind}` blocks")
