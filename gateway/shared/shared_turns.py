"""Lets fair shares of clients hold for several gateways: each charges what the others have served."""

from collections.abc import Callable, Mapping

from gateway.shared.served_costs import Costs, OthersCosts, PublishedCosts


class SharedTurns:
    """Publishes what the clients of one gateway were served, and charges them for what others have served them."""

    def __init__(self, take_served: Callable[[], Costs], charge: Callable[[str, str, float], None]) -> None:
        """`take_served` returns what clients were served since the last call; `charge` is called with a model, a client
        and the cost of what others have served it."""
        self._take_served = take_served
        self._charge = charge
        self._published = PublishedCosts()
        self._others = OthersCosts()

    def publish(self) -> bytes:
        """Return what was served so far, to be published."""
        return self._published.update(self._take_served())

    def read(self, published: Mapping[str, bytes]) -> None:
        """Charge clients for what other gateways have published, by their names. Raises `ValueError`."""
        for model, client, cost in self._others.update(published):
            self._charge(model, client, cost)
