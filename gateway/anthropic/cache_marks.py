"""Marks of a prompt: up to which of its blocks it is to be kept, and for how long."""

from gateway.anthropic.schema import CacheBreakpoint
from protocol.request import Pin

SECONDS = {None: 300, "5m": 300, "1h": 3600}
"""Time that a mark keeps a prompt without further use, by its `ttl`."""


class CacheMarks:
    """The last mark of each `ttl`. One that is no later than a longer-lived one adds nothing."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}

    def add(self, mark: CacheBreakpoint | None, messages: int, characters: int = 0) -> None:
        """Add the mark of a block, if it has one: behind so many messages, and characters of the next one."""
        if mark is not None:
            seconds = SECONDS[mark.ttl]
            self._last[seconds] = max(self._last.get(seconds, (0, 0)), (messages, characters))

    def pins(self) -> tuple[Pin, ...]:
        """Return the prefixes that are to be kept."""
        found: list[Pin] = []
        reached = (-1, 0)
        for seconds, place in sorted(self._last.items(), reverse=True):
            if place > reached:
                found.append(Pin(place[0], seconds, place[1]))
                reached = place
        return tuple(found)
