"""The number of workers that a load needs: up fast, down slowly. Pure."""

import math
from dataclasses import dataclass

FULL = 0.7
"""The share of the slots that may be busy in the workers that remain, for one to be given up."""


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The load of one model."""

    waiting: int
    """Sequences that wait: in the gateway, and in the queues of workers."""
    active: int
    """Sequences that have a slot."""
    slots: int
    """Slots of the workers that are ready."""


@dataclass(frozen=True, slots=True)
class ScaleRange:
    """The bounds of the number of workers, and what changes it."""

    least: int
    most: int
    """As `least`: the number is fixed."""
    target_queue: float = 4.0
    """Waiting sequences for each worker, above which there are more."""
    down_s: float = 300.0
    """Time that the load must fit into fewer workers, before there is one less."""


class ReplicaTarget:
    """Owns the number of workers that is wanted.

    It grows at once, at most to the double, but not while workers that were asked for are still to come: what they take
    is not known yet. It shrinks by one, after `down_s` in which nothing waited and the others had room for all. So a
    load that stays the same leaves the number as it is.
    """

    def __init__(self, bounds: ScaleRange, wanted: int) -> None:
        """`wanted` is the number at the start."""
        self._bounds = bounds
        self.wanted = min(max(wanted, bounds.least), bounds.most)
        self._fits_since: float | None = None

    def update(self, load: FleetLoad, ready: int, now: float) -> int:
        """Take the load and the number of ready workers at a time of any steady clock. Returns the number wanted."""
        bounds, wanted = self._bounds, self.wanted
        if load.waiting > bounds.target_queue * wanted:
            self._fits_since = None
            if ready >= wanted:
                needed = math.ceil(load.waiting / bounds.target_queue)
                self.wanted = min(bounds.most, max(needed, wanted + 1), max(2 * wanted, 1))
        elif wanted <= bounds.least or not self._fits(load):
            self._fits_since = None
        elif self._fits_since is None:
            self._fits_since = now
        elif now - self._fits_since >= bounds.down_s:
            self.wanted, self._fits_since = wanted - 1, None
        return self.wanted

    def _fits(self, load: FleetLoad) -> bool:
        """Return whether one worker less is enough."""
        return load.waiting == 0 and load.active <= FULL * load.slots * (self.wanted - 1) / self.wanted
