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
    "stored_hits",
    "stored_tokens",
    "stored_failures",
    "drafts",
    "draft_tokens",
    "accepted_tokens",
    "drafters_failed",
    "state_cache_hits",
    "state_cache_evictions",
    "sparse_prompts",
    "sparse_kept_tokens",
    "sparse_left_out_tokens",
    "sparse_dense_prompts",
    "images_encoded",
    "image_cache_hits",
    "image_encode_ms",
)
"""The fields of `Gauges` that only grow within one incarnation, and that metrics show."""


class Counters:
    """Sums up one worker's `Gauges`. Stale or repeated reports change nothing.

    There is a report with every step, and somebody looks once in a while: a report is only kept until then.
    """

    def __init__(self) -> None:
        self._incarnation = -1
        self._latest = Gauges()
        """The report of this incarnation with the most steps."""
        self._before = dict.fromkeys(COUNTED, 0)
        self._now = dict.fromkeys(COUNTED, 0)
        """The counts of this incarnation that somebody has seen."""

    def add(self, incarnation: int, gauges: Gauges) -> None:
        """Add a report of an incarnation."""
        if incarnation < self._incarnation:
            return
        if incarnation > self._incarnation:
            for name in COUNTED:
                self._before[name] = self.total(name)
            self._now = dict.fromkeys(COUNTED, 0)
            self._incarnation = incarnation
            self._latest = gauges
        elif gauges.steps > self._latest.steps:
            self._latest = gauges
        elif gauges.steps == self._latest.steps:  # a heartbeat, or a status that may be older: either may count more
            for name in COUNTED:
                self.total(name)
            self._latest = gauges

    def total(self, name: str) -> int:
        """The count over all incarnations."""
        latest: int = getattr(self._latest, name)
        self._now[name] = max(self._now[name], latest)
        return self._before[name] + self._now[name]
