"""Load of one worker by the prompts that it has not computed yet, and its measured pace. Pure."""

from dataclasses import dataclass, field

from gateway.routing.prefixes.pace import Pace

MIN_MEASURED = 64
"""Prompt tokens below which a prefill says little about the rate: most of its time is that of a step."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The estimates for a sequence on its worker, until its first token."""

    estimated: float
    """Tokens of the prompt, as estimated from its bytes; 0 if they are known."""
    resumed: int
    """Tokens that were generated before."""
    promised: float
    """Tokens that the worker need not compute, by the digests."""
    promised_elsewhere: float
    """Those that the least loaded worker need not compute."""
    uncached: float
    """Tokens that the worker has to compute."""
    stored: bool = False
    """They are promised of its prefix tier, and not of its slots."""


@dataclass(slots=True)
class WorkerLoad:
    """The prompts that a worker has to compute, and how fast it did that before."""

    pace: Pace = field(default_factory=Pace)
    pending: float = 0.0
    """Prompt tokens to be computed."""
    last_turn: int = 0
    """The number of the last choice of this worker, among those of its model."""
    _expected: dict[int, Expected] = field(default_factory=dict)
    """The sequences without a first token, by their numbers."""

    def place(self, number: int, expected: Expected) -> None:
        """Add a sequence."""
        self._expected[number] = expected
        self.pending += expected.uncached

    def take(self, number: int) -> Expected | None:
        """Remove a sequence that has its first token, or has left; None if it was removed before."""
        expected = self._expected.pop(number, None)
        if expected is not None:
            self.pending = self.pending - expected.uncached if self._expected else 0.0
        return expected

    def clear(self) -> None:
        """Remove all sequences. What was measured stays."""
        self._expected.clear()
        self.pending = 0.0
