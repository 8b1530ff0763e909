"""The messages and parameters of a conversation, and its slash commands."""

from collections.abc import Callable
from typing import Any

import msgspec

from cli.client.model_client import ModelRequest
from cli.config import sampling_options
from cli.config.errors import InvalidOption
from protocol.request import Limits, Message, Sampling

HELP = """\
/help            show this list
/clear           start a new conversation; the system message stays
/system [TEXT]   show the system message, or set it and start a new conversation
/params          show the parameters
/params K=V ...  set parameters: temperature, top_k, top_p, min_p, seed, max_tokens and the penalties
Ctrl-C           cancel a reply
Ctrl-D           exit"""

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


class Conversation:
    """Owns the messages so far and the parameters of the next reply."""

    def __init__(self, sampling: Sampling, limits: Limits, system: str = "") -> None:
        self._sampling = sampling
        self._limits = limits
        self._system = system
        self._messages: list[Message] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages that the model gets: the system message, if any, and the conversation."""
        first = [Message("system", self._system)] if self._system else []
        return tuple(first + self._messages)

    def ask(self, line: str) -> ModelRequest:
        """Add a message of the user, and return the request for the reply."""
        self._messages.append(Message("user", line))
        return ModelRequest(self._sampling, self._limits, messages=self.messages)

    def add_reply(self, text: str) -> None:
        """Add the model's reply."""
        self._messages.append(Message("assistant", text))

    def remove_last(self) -> None:
        """Remove the user's last message, which got no reply."""
        self._messages.pop()

    def execute(self, line: str) -> str:
        """Execute a slash command and return its output."""
        command, _, rest = line.partition(" ")
        rest = rest.strip()
        match command:
            case "/help":
                return HELP
            case "/clear":
                self._messages.clear()
                return "A new conversation starts."
            case "/system":
                return self._set_system(rest)
            case "/params":
                return self._set_parameters(rest.split()) if rest else self._parameters()
        return f"There is no command {command}; /help lists them."

    def _set_system(self, text: str) -> str:
        if not text:
            return f"system: {self._system or '(none)'}"
        self._system = text
        self._messages.clear()
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
