"""Sources of the results of tool calls."""

from collections.abc import Callable
from typing import Protocol

from protocol.request import ToolCall


class ToolFailed(Exception):
    """Raised if a tool gives no result. The model gets the message as the result."""


class ToolCancelled(Exception):
    """Raised if the user gives no result, or presses Ctrl-C while a tool runs."""


class ToolResults(Protocol):
    """Answers tool calls, one at a time."""

    typed: bool
    """The user typed the results, and so has seen them."""

    def result(self, call: ToolCall) -> str:
        """Return the result of a call. Raises `ToolFailed` and `ToolCancelled`."""


class TypedResults:
    """Implements `ToolResults`: asks the user."""

    typed = True

    def __init__(self, read: Callable[[str], str]) -> None:
        """`read` prints a prompt and returns a line."""
        self._read = read

    def result(self, call: ToolCall) -> str:
        """See `ToolResults.result`. Ctrl-C and Ctrl-D cancel."""
        try:
            return self._read(f"result of {call.name}> ").rstrip("\n")
        except (KeyboardInterrupt, EOFError) as error:
            raise ToolCancelled from error
