"""Limits of one render of a chat template: seconds, characters and list elements."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

MAX_ITEMS = 1 << 17
"""Elements of a list that a template builds; also the largest width or count that it passes to a string method."""
MAX_BITS = 4096
"""Bits of an integer product or power."""
_WIDTHS = re.compile(r"%(?:\([^)]*\))?[-#0 +]*([0-9]*)(?:\.([0-9]*))?|\{[^{}]*?:[^{}0-9]*([0-9]*)(?:\.([0-9]*))?")
"""Width and precision of the fields of a format string, of both kinds (`%` and `str.format`)."""
_WIDTH_FROM_ARGUMENT = re.compile(r"%[^a-zA-Z%]*\*|\{[^{}]*:[^{}]*\{")
_PER_PART = {"expandtabs": 0, "indent": 64, "wordwrap": 4096, "translate": 1}
"""Methods and filters that may insert an argument at each character; arguments up to this length are always allowed."""


class TemplateError(Exception):
    """Raised when a template does not compile, refuses its messages (`raise_exception`), fails or exceeds a limit."""


class RenderBudget:
    """Time and characters that one render may still use."""

    def __init__(self, clock: Callable[[], float], limit_s: float, max_chars: int) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self.max_chars = max_chars
        """Characters of one string, and of the prompt."""
        self._ends = 0.0
        self._chars = 0

    def restart(self) -> None:
        """Start a new render."""
        self._ends = self._clock() + self._limit_s
        # A character may pass through several macros and set blocks before it reaches the prompt.
        self._chars = 8 * self.max_chars

    def check_time(self) -> None:
        """Raise `TemplateError` if the time limit has passed."""
        if self._clock() > self._ends:
            raise TemplateError(f"the chat template ran longer than {self._limit_s:g} s")

    def check_size(self, size: int, bound: int) -> None:
        """Raise `TemplateError` if `size` exceeds `bound`."""
        if size > bound:
            raise TemplateError(f"the chat template builds something of size {size}, over the bound of {bound}")

    def check_value(self, value: Any) -> Any:
        """Check a result and return it."""
        self.check_time()
        if isinstance(value, str):
            self.check_size(len(value), self.max_chars)
        elif isinstance(value, list | tuple | dict | set):
            self.check_size(len(value), MAX_ITEMS)
        return value

    def check_whole(self, value: Any) -> None:
        """Limit the size of a value as text. A part counts as often as it occurs: lists can contain each other."""
        size, rest = 0, [value]
        while rest:
            item = rest.pop()
            if isinstance(item, str):
                size += len(item)
            elif isinstance(item, Mapping):
                self.check_time()
                size += len(item)
                rest += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple | set):
                self.check_time()
                size += len(item)
                rest += item
            self.check_size(size, self.max_chars)

    def check_operands(self, operator: str, left: Any, right: Any) -> None:
        """Check limits before an operation that may take too long or too much memory."""
        if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            self.check_size(bits, MAX_BITS)
        elif operator == "*":
            value, times = (left, right) if isinstance(right, int) else (right, left)
            if isinstance(value, str | list | tuple) and isinstance(times, int):
                self.check_size(len(value) * times, MAX_ITEMS)
        elif operator == "%" and isinstance(left, str):
            self.check_string_method("format", left, right if isinstance(right, tuple) else (right,), {})

    def check_string_method(self, name: str, value: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check limits before a method, filter or operator that pads, fills or formats a string."""
        arguments = [*args, *kwargs.values()]
        formats = name in ("format", "format_map")
        if not formats or _WIDTH_FROM_ARGUMENT.search(value):
            for argument in arguments:
                if isinstance(argument, int):
                    self.check_size(abs(argument), MAX_ITEMS)
        if formats:
            for run in (run for field in _WIDTHS.findall(value) for run in field if run):
                self.check_size(int(run[:18]), MAX_ITEMS)
        elif name == "replace" and len(arguments) > 1 and all(isinstance(each, str) for each in arguments[:2]):
            old, new = arguments[:2]
            self.check_size(len(value) + value.count(old) * len(new), self.max_chars)
        elif name == "join" and len(arguments) == 1 and isinstance(arguments[0], list | tuple | set | Mapping):
            self.check_size(len(value) * len(arguments[0]), self.max_chars)
            self.check_whole(arguments[0])
        elif name in _PER_PART and arguments:
            parts = value.count("\t") if name == "expandtabs" else len(value)
            each = max(map(_length, arguments))
            self.check_size(len(value) + parts * each if each > _PER_PART[name] else 0, self.max_chars)

    def print(self, value: Any) -> Any:
        """Check a value that a template prints, also in macros and set blocks. Called by jinja."""
        self.check_value(value)
        if not isinstance(value, str):
            self.check_whole(value)
        self._chars -= len(value) if isinstance(value, str) else 0
        if self._chars < 0:
            raise TemplateError(f"the chat template prints more than {8 * self.max_chars} characters")
        return value

    def iterate(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Iterate over the iterable of a loop, and check the time in each iteration."""
        for item in iterable:
            self.check_time()
            yield item


def _length(argument: Any) -> int:
    """Return the length of the longest text that an argument of a string method can produce."""
    if isinstance(argument, Mapping):
        return max((_length(each) for each in argument.values()), default=0)
    return len(argument) if isinstance(argument, str) else abs(argument) if isinstance(argument, int) else 0
