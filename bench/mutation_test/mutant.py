"""A mutant: one small change of one module."""

import difflib
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Mutant:
    """A replacement of the bytes from `start` to `end` of a module. Pure."""

    module: str
    """The path from the root of the repository."""
    start: int
    end: int
    text: str
    """The text that replaces these bytes."""
    operator: str
    where: str
    """The class and function that it changes, as in `SlotTable.take`. Empty for the top level of the module."""

    def apply(self, source: bytes) -> bytes:
        """Return the source of the module with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def line(self, source: bytes) -> int:
        """Return the line of the change, from 1."""
        return source.count(b"\n", 0, self.start) + 1

    def change(self, source: bytes) -> tuple[str, str]:
        """Return the changed lines before and after, each as one line with single spaces."""
        first = source.rfind(b"\n", 0, self.start) + 1
        last = source.find(b"\n", self.end)
        last = len(source) if last < 0 else last
        after = source[first : self.start] + self.text.encode() + source[self.end : last]
        return _one_line(source[first:last]), _one_line(after)

    def diff(self, source: bytes) -> str:
        """Return the change as a unified diff."""
        before, after = (text.decode().splitlines() for text in (source, self.apply(source)))
        return "\n".join(difflib.unified_diff(before, after, self.module, self.module, lineterm="", n=2))


def _one_line(text: bytes) -> str:
    return " ".join(text.decode().split())
