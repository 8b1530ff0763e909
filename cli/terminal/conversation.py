"""A conversation and its slash commands, without a terminal and without a model."""

from collections.abc import Callable
from typing import Any

import msgspec

from cli.client.model_client import ModelRequest
from cli.config import sampling_options
from cli.config.errors import InvalidOption
from protocol.request import Limits, Message, Sampling

HELP = """\
/help            this list
/clear           forget the conversation; the system text stays
/system [TEXT]   show or set what the model is told first; starts over
/params          show the parameters
/params K=V ...  set some: temperature, top_k, top_p, min_p, seed, max_tokens, and the penalties
Ctrl-C           cancels a reply
Ctrl-D           leaves"""

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
    """Owns what was said so far and the parameters of the next reply."""

    def __init__(self, sampling: Sampling, limits: Limits, system: str = "") -> None:
        self._sampling = sampling
        self._limits = limits
        self._system = system
        self._messages: list[Message] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        """What the model is shown: the system text, if any, and all that was said."""
        first = [Message("system", self._system)] if self._system else []
        return tuple(first + self._messages)

    def ask(self, line: str) -> ModelRequest:
        """Add what the user says, and ask for the reply."""
        self._messages.append(Message("user", line))
        return ModelRequest(self._sampling, self._limits, messages=self.messages)

    def answered(self, text: str) -> None:
        """Add what the model said."""
        self._messages.append(Message("assistant", text))

    def forget_last(self) -> None:
        """Take back what the user said last: it got no reply."""
        self._messages.pop()

    def obey(self, line: str) -> str:
        """Carry out a slash command; the answer is for the user."""
        command, _, rest = line.partition(" ")
        rest = rest.strip()
        match command:
            case "/help":
                return HELP
            case "/clear":
                self._messages.clear()
                return "The conversation starts over."
            case "/system":
                return self._set_system(rest)
            case "/params":
                return self._set_parameters(rest.split()) if rest else self._parameters()
        return f"There is no command {command}; /help lists them."

    def _set_system(self, text: str) -> str:
        if not text:
            return f"system: {self._system or '(nothing)'}"
        self._system = text
        self._messages.clear()
        return "The model is told this first; the conversation starts over."

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
