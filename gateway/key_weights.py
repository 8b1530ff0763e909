"""The weights of API keys: by their priority class, or as the settings give them. And the names of clients, which have
the weights of their keys."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from protocol.scheduling import PriorityClass

MIN_WEIGHT = 0.01
MAX_WEIGHT = 1000.0


class Priority(StrEnum):
    """The priority class of a request, which is that of its API key."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


CLASS_WEIGHTS = {Priority.HIGH: 4.0, Priority.NORMAL: 1.0, Priority.LOW: 0.25}
"""The weight of a key of each class, in the shares of an overloaded server."""
CLASSES: dict[Priority, PriorityClass] = {Priority.HIGH: "high", Priority.NORMAL: "normal", Priority.LOW: "low"}
"""The classes as workers know them."""


_FLOW = "\n"
"""In the name of a client, between that of its API key, which has none, and its fairness id."""


def client_name(key_name: str, fairness_id: str) -> str:
    """The name of a client that gets a share of its own: a key, or a fairness id that a gateway gave requests with that
    key. Both may be empty."""
    return f"{key_name}{_FLOW}{fairness_id}" if fairness_id else key_name


def key_of_client(client: str) -> str:
    """The name of the key of a client."""
    return client.partition(_FLOW)[0]


def parse_weights(entries: Iterable[str]) -> Mapping[str, float]:
    """Return the weights of keys by name, from entries `NAME=WEIGHT`. Raises `ValueError`."""
    weights: dict[str, float] = {}
    for entry in entries:
        name, _, given = entry.rpartition("=")
        try:
            weight = float(given)
        except ValueError:
            weight = 0.0
        if not name or not MIN_WEIGHT <= weight <= MAX_WEIGHT:
            allowed = f"a name and a weight of {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"
            raise ValueError(f"{entry[:200]!r} is not NAME=WEIGHT, {allowed}")
        if name in weights:
            raise ValueError(f"{name!r} has two weights")
        weights[name] = weight
    return weights
