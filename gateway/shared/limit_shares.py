"""The shares of several gateways in the limits of API keys, by where the requests come. Pure."""

from collections.abc import Mapping

from gateway.metrics.key_collector import KeyUse

EQUAL = 0.1
"""The part of each limit that is divided equally, so that a key is served at once where it was not used before."""
DECAY = 0.8
"""The part of a demand that remains after each exchange."""


class Demand:
    """The demand for each key at one gateway: requests of the last seconds, admitted or not, and those under way."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._demand: dict[str, float] = {}

    def update(self, uses: Mapping[str, KeyUse]) -> Mapping[str, float]:
        """Take the use of all keys so far, and return the demand for each."""
        seen = {name: use.requests + use.refused for name, use in uses.items()}
        self._demand = {
            name: round(DECAY * self._demand.get(name, 0.0) + max(0, seen[name] - self._seen.get(name, 0)), 3)
            for name in uses
        }
        self._seen = seen
        return {name: demand + uses[name].live for name, demand in self._demand.items()}


def wanted_share(own: float, others: list[float]) -> float:
    """Return the share of a gateway with this demand, beside others with theirs."""
    total, gateways = own + sum(others), 1 + len(others)
    by_demand = own / total if total else 1 / gateways
    return EQUAL / gateways + (1 - EQUAL) * by_demand
