"""The places of those that watch the live picture. Pure.

On a server without keys, any page in a browser that reaches it can open connections to it, though it cannot read them.
So places are not simply taken: when all are, a newcomer gets one of the client that has the most.
"""

import asyncio
from collections import Counter

MAX_WATCHERS = 16
"""Places. All who have one get the same snapshots."""


class Watcher:
    """One who has a place."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.replaced = asyncio.Event()
        """Set when another one has got its place."""


class Watchers:
    """Owns the places. `client` is the name of an API key, or without keys an address."""

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []
        """In the order in which they came."""

    def enter(self, client: str) -> Watcher | None:
        """Give a place to a client. If all are taken, it is that of the oldest watcher of the client with the most, or
        its own oldest one if no client has two more than it. None if each place is of another client."""
        if len(self._watchers) >= MAX_WATCHERS:
            counts = Counter(each.client for each in self._watchers)
            largest, most = counts.most_common(1)[0]
            own = counts[client]
            if own == 0 and most == 1:
                return None
            gives_way = largest if most > own + 1 else client
            oldest = next(each for each in self._watchers if each.client == gives_way)
            oldest.replaced.set()
            self.leave(oldest)
        watcher = Watcher(client)
        self._watchers.append(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Release a place. No effect for one that was replaced."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)
