"""How long a worker may take for what it owes."""

from dataclasses import dataclass

CHECKS = 4
"""Looks at a worker within the shortest of its deadlines."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a worker may take, in seconds."""

    hello: float = 60.0
    """From the start of the process to its `Hello`."""
    loading: float = 900.0
    """Between two signs of progress while it loads."""
    heartbeat: float = 30.0
    """Between two frames of any kind after `Hello`."""
    idle: float = 10.0
    """The same of a worker without work, which sends a heartbeat each second: nothing of its own can keep it from
    that."""
    hang: float = 10.0
    """Without an advance of `gauges.steps` while work is in flight, at least: see `hang_factor`."""
    hang_factor: float = 8.0
    """As many times the longest step that the worker has shown, or has said to be possible, if that is longer."""
    hang_most: float = 900.0
    """No worker is given longer than this for a step, whatever it reports; at least `hang`."""
    suspended: float = 0.5
    """Stopped by a signal, on a system that reports it. Only who stopped it can let it continue."""
    stop: float = 5.0
    """From `Stop` or `Bye` (or the end of a drain's grace) to its exit."""
    term: float = 2.0
    """From SIGTERM to SIGKILL."""
    shortage: float = 1.0
    """From a start that failed because the system was short of something to the next one, of a worker that was ready
    before."""

    def __post_init__(self) -> None:
        """Raises `ValueError` that names the field which is not above 0, or contradicts another one."""
        for name in self.__dataclass_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        if self.hang_most < self.hang:
            raise ValueError(f"hang_most: {self.hang_most} is below hang, {self.hang}")

    def step(self, longest_s: float) -> float:
        """Seconds that a worker may go without finishing a step, when its longest legitimate one takes `longest_s`."""
        return min(max(self.hang, self.hang_factor * longest_s), self.hang_most)

    @property
    def check_s(self) -> float:
        """Seconds between two checks of the deadlines."""
        return min(self.hello, self.loading, self.heartbeat, self.idle, self.hang, self.stop, 4.0) / CHECKS

    @property
    def observe_s(self) -> float:
        """Seconds between two looks at whether a process is suspended; the deadlines are checked at some of them."""
        return min(self.check_s, self.suspended / CHECKS)
