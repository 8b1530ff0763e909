"""The messages and parameters of a conversation, and its slash commands."""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from cli.client.image_file import ImageFileInvalid, read_image
from cli.client.model_client import ModelRequest
from cli.config import sampling_options
from cli.config.errors import InvalidOption
from cli.config.generation_options import REASONING_MODES, ReasoningMode
from protocol.bounds import MAX_IMAGE_BYTES, MAX_IMAGES
from protocol.request import Grammar, Image, ImagePlace, Limits, Message, Sampling, ToolCall

HELP = """\
/help            show this list
/exit            leave, like /quit, /bye and Ctrl-D
/clear           start a new conversation; the system message stays
/image PATH      send an image with the next message; without PATH, leave them out
/system [TEXT]   show the system message, or set it and start a new conversation
/params          show the parameters
/params K=V ...  set parameters: temperature, top_k, top_p, min_p, seed, max_tokens and the penalties
/reasoning       show the reasoning of the last reply
/reasoning MODE  show, fold or hide the reasoning of later replies
Ctrl-C           cancel a reply
Ctrl-D           exit"""

EXITS = ("/exit", "/quit", "/bye")
COMMANDS = ("/help", *EXITS, "/clear", "/image", "/system", "/params", "/reasoning")
_COMMAND = re.compile(r"/[A-Za-z?-]*(?=\s|$)")

PARAMETERS: dict[str, Callable[[str], Any]] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "seed": int,
    "presence_penalty": float,
    "frequency_penalty": float,
    "repetition_penalty": float,
    "max_tokens": int,
}


def command_of(line: str) -> str:
    """Return the slash command of a line; empty for a message, which may begin with a path."""
    found = _COMMAND.match(line)
    return found[0].lower() if found else ""


class Conversation:
    """Owns the messages so far and the parameters of the next reply."""

    def __init__(
        self,
        sampling: Sampling,
        limits: Limits,
        system: str = "",
        *,
        grammar: Grammar | None = None,
        tools: str = "",
        reasoning_mode: ReasoningMode = "fold",
    ) -> None:
        """`grammar` and `tools` are those of every request; see `ModelRequest`."""
        self._sampling = sampling
        self._limits = limits
        self._system = system
        self._grammar = grammar
        self._tools = tools
        self.reasoning_mode = reasoning_mode
        self._messages: list[Message] = []
        self._images: list[Image] = []
        """The images of the messages, in their order, then those of the next one."""
        self._sent = 0
        """Images of messages."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages that the model gets: the system message, if any, and the conversation."""
        first = [Message("system", self._system)] if self._system else []
        return tuple(first + self._messages)

    def ask(self, line: str) -> ModelRequest:
        """Add a message of the user, and return the request for the reply."""
        places = tuple(ImagePlace(index, 0) for index in range(self._sent, len(self._images)))
        self._sent = len(self._images)
        self._messages.append(Message("user", line, images=places))
        return self.request()

    def add_image(self, path: str) -> Image:
        """Add an image to the next message. Raises `ImageFileInvalid`."""
        image = read_image(path)
        if len(self._images) == MAX_IMAGES:
            raise ImageFileInvalid(f"{path}: a conversation may have {MAX_IMAGES} images; /clear starts another one")
        if sum(len(each.data) for each in self._images) + len(image.data) > MAX_IMAGE_BYTES:
            raise ImageFileInvalid(
                f"{path}: the images of a conversation may have {MAX_IMAGE_BYTES} bytes; /clear starts another one"
            )
        self._images.append(image)
        return image

    def request(self) -> ModelRequest:
        """Return the request for the reply to the messages so far."""
        return ModelRequest(
            self._sampling,
            self._limits,
            messages=self.messages,
            grammar=self._grammar,
            tools=self._tools,
            images=tuple(self._images[: self._sent]),
        )

    def add_reply(self, text: str, reasoning: str = "", calls: tuple[ToolCall, ...] = ()) -> None:
        """Add the model's reply."""
        self._messages.append(Message("assistant", text, tool_calls=calls, reasoning=reasoning))

    def add_result(self, call: ToolCall, text: str) -> None:
        """Add the result of a tool call of the last reply."""
        self._messages.append(Message("tool", text, tool_call_id=call.id))

    def remove_last(self) -> None:
        """Remove the user's last message, with its images, and what followed it."""
        while (last := self._messages.pop()).role != "user":
            pass
        del self._images[self._sent - len(last.images) :]
        self._sent = len(self._images)

    def execute(self, line: str) -> str:
        """Execute a slash command and return its output."""
        command = command_of(line)
        rest = line[len(command) :].strip()
        match command:
            case "/help":
                return HELP
            case "/clear":
                self._clear()
                return "A new conversation starts."
            case "/image":
                return self._add_image(rest)
            case "/system":
                return self._set_system(rest)
            case "/params":
                return self._set_parameters(rest.split()) if rest else self._parameters()
            case "/reasoning":
                return self._set_reasoning(rest) if rest else self._last_reasoning()
        return f"There is no command {command}; there are {', '.join(COMMANDS)}. /help explains them."

    def _clear(self) -> None:
        self._messages.clear()
        self._images.clear()
        self._sent = 0

    def _add_image(self, path: str) -> str:
        if not path:
            del self._images[self._sent :]
            return "The next message has no image."
        try:
            image = self.add_image(path)
        except ImageFileInvalid as error:
            return str(error)
        return f"The next message has {path}, {image.width} x {image.height} pixels."

    def _last_reasoning(self) -> str:
        found = next((message for message in reversed(self._messages) if message.role == "assistant"), None)
        return found.reasoning if found and found.reasoning else "The last reply has no reasoning."

    def _set_reasoning(self, word: str) -> str:
        for mode in REASONING_MODES:
            if word == mode:
                self.reasoning_mode = mode
                return f"reasoning: {mode}"
        return f"/reasoning: must be one of {', '.join(REASONING_MODES)}, not {word!r}"

    def _set_system(self, text: str) -> str:
        if not text:
            return f"system: {self._system or '(none)'}"
        self._system = text
        self._clear()
        return "The system message is set; a new conversation starts."

    def _parameters(self) -> str:
        values = msgspec.structs.asdict(self._sampling) | {"max_tokens": self._limits.max_tokens}
        return "  ".join(f"{name}={values[name]}" for name in PARAMETERS)

    def _set_parameters(self, assignments: list[str]) -> str:
        values = msgspec.structs.asdict(self._sampling) | {"max_tokens": self._limits.max_tokens}
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            if name not in PARAMETERS or not equals:
                return f"{assignment}: write NAME=VALUE, NAME one of {', '.join(PARAMETERS)}"
            try:
                values[name] = PARAMETERS[name](text)
            except ValueError:
                return f"{name}: {text!r} is not a number"
        max_tokens = values.pop("max_tokens")
        try:
            sampling, limits = sampling_options.sampling(**values), sampling_options.limits(max_tokens=max_tokens)
        except InvalidOption as error:
            return str(error.message).removeprefix("--").replace("-", "_", 1)
        self._sampling, self._limits = sampling, limits
        return self._parameters()
