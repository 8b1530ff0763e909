"""The weights of API keys."""

from collections.abc import Iterable, Mapping

MIN_WEIGHT = 0.01
MAX_WEIGHT = 1000.0


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
