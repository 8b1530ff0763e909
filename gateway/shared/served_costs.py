"""Costs that clients were served by each gateway, as gateways publish them. Pure."""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import DecodeError

MAX_BYTES = 32 * 1024
"""Size of what one gateway publishes."""
_ENTRY_BYTES = 40
"""Upper bound for a number and its punctuation."""

Costs = Mapping[str, Mapping[str, float]]
"""Costs by model and client."""
_COSTS = msgspec.json.Decoder(dict[str, dict[str, float]])


class PublishedCosts:
    """The costs that this gateway publishes: sums over the time since a client was first among them.

    Of too many clients, those are published that were served most since the last time.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], float] = {}

    def update(self, served: Costs) -> bytes:
        """Add what was served since the last time. Returns what is published."""
        lately = {(model, client): cost for model, costs in served.items() for client, cost in costs.items()}
        before, self._sums = self._sums, {}
        known = sorted(before.keys() | lately.keys(), key=lambda each: (-lately.get(each, 0.0), each))
        published: dict[str, dict[str, float]] = {}
        left = MAX_BYTES - 2
        for model, client in known:
            new_model = 0 if model in published else _ENTRY_BYTES + len(msgspec.json.encode(model))
            left -= new_model + _ENTRY_BYTES + len(msgspec.json.encode(client))
            if left < 0:
                break
            total = before.get((model, client), 0.0) + lately.get((model, client), 0.0)
            self._sums[model, client] = total
            published.setdefault(model, {})[client] = round(total, 1)
        return msgspec.json.encode(published)


class OthersCosts:
    """The costs that other gateways have published so far."""

    def __init__(self) -> None:
        self._counted: dict[str, dict[tuple[str, str], float]] = {}
        """The sums that were counted, by gateway. A sum that is lower now is of an estimate that was too high."""

    def update(self, published: Mapping[str, bytes]) -> Iterator[tuple[str, str, float]]:
        """Yield model, client and cost of what other gateways served since the last time. What a gateway had published
        before it was first seen is not counted. Raises `ValueError` for what is no `Costs`."""
        before, self._counted = self._counted, {}
        for gateway, text in published.items():
            known = before.get(gateway)
            counted = self._counted[gateway] = {}
            try:
                costs = _COSTS.decode(text) if text else {}
            except DecodeError as error:
                raise ValueError(f"costs of gateway {gateway!r}: {error}") from error
            for model, clients in costs.items():
                for client, total in clients.items():
                    last = total if known is None else known.get((model, client), 0.0)
                    counted[model, client] = max(last, total)
                    if total > last:
                        yield model, client, total - last
