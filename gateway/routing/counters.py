"""A worker's counters over all its incarnations: they only grow, though each incarnation starts at zero."""

from protocol.events import Gauges

COUNTED = (
    "steps",
    "steps_failed",
    "decode_steps",
    "prefill_tokens",
    "decode_tokens",
    "sequences_started",
    "sequences_completed",
    "prefix_hits",
    "prefix_tokens",
    "graphs_failed",
    "malformed_calls",
    "preemptions",
    "drafts",
    "draft_tokens",
    "accepted_tokens",
)
"""The fields of `Gauges` that only grow within one incarnation, and that metrics show."""


class Counters:
    """Sums up one worker's `Gauges`. Stale or repeated reports change nothing."""

    def __init__(self) -> None:
        self._incarnation = -1
        self._before = dict.fromkeys(COUNTED, 0)
        self._now = dict.fromkeys(COUNTED, 0)

    def add(self, incarnation: int, gauges: Gauges) -> None:
        """Add a report of an incarnation."""
        if incarnation < self._incarnation:
            return
        if incarnation > self._incarnation:
            for name in COUNTED:
                self._before[name] += self._now[name]
            self._now = dict.fromkeys(COUNTED, 0)
            self._incarnation = incarnation
        for name in COUNTED:
            self._now[name] = max(self._now[name], getattr(gauges, name))

    def total(self, name: str) -> int:
        """The count over all incarnations."""
        return self._before[name] + self._now[name]
