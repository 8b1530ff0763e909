"""Weighted fair shares of clients, by the tokens that they were served. Pure."""

from collections.abc import Callable, Container

OUTPUT_COST = 2.0
"""Cost of a generated token, in prompt tokens that had to be computed."""
MOST_LEAD = 5.0
"""Intervals whose costs at other gateways can raise a counter above the level. So a client that they serve no more does
not wait for long."""
MAX_IDLE = 1024
"""Clients without waiting requests whose counters are kept, before those that mean nothing any more are dropped: as
many as a file of API keys has."""


class FairShares:
    """A virtual token counter for each client, after Sheng et al., "Fairness in Serving Large Language Models" (OSDI
    2024): the waiting client with the lowest counter has the next turn.

    A counter is the cost that a client was charged, divided by its weight. The counters of clients that wait all the
    time differ by no more than what one turn may cost. A client that comes back gets no credit for the time in which it
    had nothing to do: its counter is raised to the lowest of those that wait, or to that of the last one whose request
    came while none waited. So nobody pays later for what it got while nobody else wanted it.
    """

    def __init__(self, weight: Callable[[str], float]) -> None:
        """`weight` returns the weight of a client, which is above 0."""
        self._weight = weight
        self._counters: dict[str, float] = {}
        self._waiting: dict[str, None] = {}
        self._last = ""
        """The client whose request was the last to come, or to leave, while no other client waited."""
        self._served: dict[str, float] | None = None
        """The costs since the last `take_served`, by client; None before the first."""

    def __contains__(self, client: str) -> bool:
        """The client waits, or its counter still means something."""
        return client in self._counters

    def enter(self, client: str) -> None:
        """Note that a client has its first waiting request."""
        self._raise(client)
        self._waiting[client] = None

    def leave(self, client: str) -> None:
        """Note that a client has no waiting request any more."""
        del self._waiting[client]
        self._last = client
        self._forget()

    def begin(self, client: str) -> None:
        """Note that a client has a turn, maybe without having waited for it."""
        if client not in self._waiting:
            self._raise(client)
            self._last = client
            self._forget()

    def charge(self, client: str, cost: float) -> None:
        """Charge a client for what it was served; a negative cost returns what was charged too much."""
        counter = self._counters.get(client)
        if counter is None:
            counter = self._level()
        self._counters[client] = counter + cost / self._weight(client)
        served = self._served
        if served is not None and (client in served or len(served) < MAX_IDLE):
            served[client] = served.get(client, 0.0) + cost

    def take_served(self) -> dict[str, float]:
        """Return what clients were charged since the last call, `MAX_IDLE` of them at most."""
        served, self._served = self._served, {}
        return served or {}

    def charge_elsewhere(self, client: str, cost: float) -> None:
        """Charge a client that waits for what other gateways have served it in an interval. Nothing is charged to one
        that does not wait: it takes nothing from anybody here."""
        if client in self._waiting:
            counter, raised = self._counters[client], cost / self._weight(client)
            self._counters[client] = max(counter, min(counter + raised, self._level() + MOST_LEAD * raised))

    def next(self, without: Container[str] = ()) -> str | None:
        """Return the waiting client that has the next turn; of equal ones the one that waits for longer. None if no
        client waits, but those in `without`."""
        clients = [client for client in self._waiting if client not in without] if without else self._waiting
        return min(clients, key=self._counters.__getitem__, default=None)

    def _raise(self, client: str) -> None:
        """Raise the counter of a client that comes back to the level of the others."""
        self._counters[client] = max(self._counters.get(client, 0.0), self._level())

    def _level(self) -> float:
        """The counter below which nobody is: what a client gets that had nothing to do."""
        waiting = min(map(self._counters.__getitem__, self._waiting), default=None)
        return self._counters.get(self._last, 0.0) if waiting is None else waiting

    def _forget(self) -> None:
        """Drop counters beyond the bound: those that are not above the level, and then the lowest half."""
        if len(self._counters) - len(self._waiting) <= MAX_IDLE:
            return
        level = self._level()
        idle = [client for client in self._counters if client not in self._waiting and client != self._last]
        kept = [client for client in idle if self._counters[client] > level]
        if len(kept) > MAX_IDLE // 2:
            kept = sorted(kept, key=self._counters.__getitem__)[-MAX_IDLE // 2 :]
        for client in set(idle).difference(kept):
            del self._counters[client]
