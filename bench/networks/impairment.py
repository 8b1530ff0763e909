"""Impairment of one direction of a link: when a packet that enters now leaves, or that it is lost. Pure."""

import random
from dataclasses import dataclass

MAX_QUEUE_S = 0.5
"""A packet that would wait longer for the bandwidth is lost, as at a router whose queue is full."""


@dataclass(frozen=True, slots=True)
class Impairment:
    """The properties of a link, the same in both directions. Like those of `tc netem`."""

    delay_s: float = 0.0
    """The delay of one direction: a round trip takes twice as long."""
    jitter_s: float = 0.0
    """Added to it at random, up to that."""
    loss: float = 0.0
    """Share of the packets that are lost."""
    reorder: float = 0.0
    """Share of the packets that do not wait for the delay, and so overtake others."""
    bits_per_s: float = 0.0
    """0: no limit."""


class Direction:
    """One direction of a link. Packets keep their order, unless they are reordered."""

    def __init__(self, impairment: Impairment, seed: int) -> None:
        self.impairment = impairment
        self.up = True
        """False: everything is lost."""
        self._random = random.Random(seed)
        self._free_at = 0.0  # when the last packet so far has been sent
        self._last_at = 0.0  # when the last one in order leaves

    def leaves_at(self, size: int, now: float) -> float | None:
        """Return the time at which a packet of `size` bytes leaves that enters now, in seconds; None if it is lost."""
        return self._leaves_at(size, now) if self.up else None

    def passes_at(self, size: int, now: float, resend_s: float) -> float:
        """Return the time at which it leaves if it is sent again after so many seconds whenever it is lost. Whether the
        link is up does not matter: what is sent while it is down has to be held back."""
        while (at := self._leaves_at(size, now)) is None:
            now += resend_s
        return at

    def _leaves_at(self, size: int, now: float) -> float | None:
        terms = self.impairment
        if self._random.random() < terms.loss:
            return None
        at = now
        if terms.bits_per_s:
            begin = max(now, self._free_at)
            if begin - now > MAX_QUEUE_S:
                return None
            at = self._free_at = begin + 8 * size / terms.bits_per_s
        if self._random.random() < terms.reorder:
            return at
        at += terms.delay_s + terms.jitter_s * self._random.random()
        self._last_at = at = max(at, self._last_at)
        return at
