"""The result of a soak."""

from dataclasses import dataclass, field
from pathlib import Path

from bench.harness.loop_watchdog import LongestTurn
from bench.soak_test.attackers import AttackTally
from bench.soak_test.leaks import ServerSample
from bench.soak_test.server_log import Failures, failures
from bench.soak_test.verdict import VisitTally


@dataclass
class SoakResult:
    """The outcomes of all visits, and what the server did."""

    tally: VisitTally = field(default_factory=VisitTally)
    attacks: AttackTally = field(default_factory=AttackTally)
    turn: LongestTurn = field(default_factory=LongestTurn)
    """The longest turn of the gateway's event loop while it was under load."""
    signals: list[tuple[float, str]] = field(default_factory=list)
    """Signals from outside: the time and the name of each."""
    samples: list[ServerSample] = field(default_factory=list)
    lives: dict[str, int] = field(default_factory=dict)
    """Incarnations of each worker."""
    problems: list[str] = field(default_factory=list)
    failures: dict[str, list[Failures]] = field(default_factory=dict)
    """The worker failures that each request lived through, by its id; without requests that had none."""
    calm_s: float = 0.0
    """The longest time between two chunks of an undisturbed answer."""

    def close(self, log: Path) -> None:
        """Compare what ended with an error with the server's log. Call it once, after the server's end."""
        with log.open() as lines:
            self.failures = failures(lines)
        self.tally.explain(self.failures)
        self.problems += self.attacks.held
        if self.tally.too_many:
            self.problems.append(self.tally.too_many)
