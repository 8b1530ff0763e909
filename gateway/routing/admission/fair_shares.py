"""Weighted fair shares of clients, by the tokens that they were served. Pure."""

from collections.abc import Callable, Container

OUTPUT_COST = 2.0
"""Cost of a generated token, in prompt tokens that had to be computed."""
MAX_IDLE = 256
"""Clients without waiting requests whose counters are kept, before those that mean nothing any more are dropped."""


class FairShares:
    """A virtual token counter for each client, after Sheng et al., "Fairness in Serving Large Language Models" (OSDI
    2024): the waiting client with the lowest counter has the next turn.

    A counter is the cost that a client was charged, divided by its weight. The counters of clients that wait all the
    time differ by no more than what one turn may cost. A client that comes back gets no credit for the time in which it
    had nothing to do: its counter is raised to the lowest of those that wait, or to that of the last one that waited.
    """

    def __init__(self, weight: Callable[[str], float]) -> None:
        """`weight` returns the weight of a client, which is above 0."""
        self._weight = weight
        self._counters: dict[str, float] = {}
        self._waiting: dict[str, None] = {}
        self._last = ""
        """The client that was the last to have no waiting request left."""

    def __contains__(self, client: str) -> bool:
        """The client waits, or its counter still means something."""
        return client in self._counters

    def enter(self, client: str) -> None:
        """Note that a client has its first waiting request."""
        self._counters[client] = max(self._counters.get(client, 0.0), self._level())
        self._waiting[client] = None

    def leave(self, client: str) -> None:
        """Note that a client has no waiting request any more."""
        del self._waiting[client]
        self._last = client
        if len(self._counters) - len(self._waiting) > MAX_IDLE:
            level = self._level()
            dropped = [each for each, counter in self._counters.items() if counter <= level and each != client]
            for each in dropped:
                if each not in self._waiting:
                    del self._counters[each]

    def charge(self, client: str, cost: float) -> None:
        """Charge a client for what it was served; a negative cost returns what was charged too much."""
        self._counters[client] = self._counters.get(client, self._level()) + cost / self._weight(client)

    def next(self, without: Container[str] = ()) -> str | None:
        """Return the waiting client that has the next turn; of equal ones the one that waits for longer. None if no
        client waits, but those in `without`."""
        clients = (client for client in self._waiting if client not in without)
        return min(clients, key=self._counters.__getitem__, default=None)

    def share(self, client: str) -> float:
        """Return the share of a client beside those that wait, within 0 and 1."""
        own = self._weight(client)
        return own / (own + sum(self._weight(each) for each in self._waiting if each != client))

    def _level(self) -> float:
        """The counter below which nobody is: what a client gets that had nothing to do."""
        waiting = min((self._counters[each] for each in self._waiting), default=None)
        return self._counters.get(self._last, 0.0) if waiting is None else waiting
