"""Chooses between a less loaded worker and one that holds more of a prompt. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_TOKENS = 32
"""Tokens that a worker must save beyond what the least loaded one saves: below that, workers recompute a prefix."""
SLACK = 0.5
"""Share of its slots that a worker may have sequences more than the least loaded one, and get another for what it
holds."""


@dataclass(frozen=True, slots=True)
class WorkerOption:
    """One worker that may get a prompt, in measured or estimated terms."""

    live: int
    """Sequences that it has, those of other gateways included."""
    slots: int
    saved: float
    """Tokens of the prompt that it need not compute."""
    pending: float
    """Prompt tokens that it computes before."""
    prefill_rate: float
    """Prompt tokens a second."""
    turn_s: float = 0.0
    """Seconds for which a sequence has a slot."""
    crowding_s: float = 0.0
    """Seconds by which each sequence beside it delays an answer."""

    def most_live(self) -> int:
        """The sequences that a worker may have beyond those of this one, the least loaded, and get another."""
        if self.live >= self.slots:  # everything waits for a slot: there must be no more before it
            return self.live
        return self.live + max(1, int(SLACK * self.slots))

    def seconds(self, prompt: float) -> float:
        """Estimate the time of a prompt of so many tokens on this worker, without that of an answer that is alone."""
        without_slot = max(0, self.live - self.slots + 1)
        wait = self.pending / self.prefill_rate + self.turn_s * without_slot / max(1, self.slots)
        return wait + (prompt - self.saved) / self.prefill_rate + self.crowding_s * self.live


def choose(options: Sequence[WorkerOption], prompt: float) -> int:
    """Return the place of the worker that gets a prompt of so many tokens: the first one, which is the least loaded,
    unless another one saves tokens, has not many sequences more, and is expected to be done earlier all the same."""
    first = options[0]
    best, least, most_live = 0, first.seconds(prompt), first.most_live()
    for place, option in enumerate(options):
        if option.saved >= first.saved + LEAST_TOKENS and option.live <= most_live:
            seconds = option.seconds(prompt)
            if seconds < least:
                best, least = place, seconds
    return best
