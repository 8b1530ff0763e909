"""The deadlines of a worker."""

from dataclasses import dataclass

CHECKS = 4
"""Checks of a worker within the shortest of its deadlines."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Deadlines of a worker, in seconds."""

    hello: float = 60.0
    """From the start of the process to its `Hello`."""
    loading: float = 900.0
    """Between two signs of progress while it loads."""
    heartbeat: float = 30.0
    """Between two frames of any kind after `Hello`."""
    idle: float = 10.0
    """Between two frames of a worker without work, which sends a heartbeat each second."""
    hang: float = 10.0
    """Without an advance of `gauges.steps` while work is in flight; at least, see `hang_factor`."""
    hang_factor: float = 8.0
    """Factor of the longest step, measured or expected by the worker, that counts if it is longer than `hang`."""
    hang_most: float = 900.0
    """The bound of both; at least `hang`."""
    suspended: float = 0.5
    """Stopped by a signal, on a system that reports it."""
    stop: float = 5.0
    """From `Stop` or `Bye` (or the end of a drain's grace) to its exit."""
    term: float = 2.0
    """From SIGTERM to SIGKILL."""
    shortage: float = 1.0
    """Between two starts while the system is short of something, of a worker that was ready before."""

    def __post_init__(self) -> None:
        """Raises `ValueError` that names the field which is not above 0, or contradicts another one."""
        for name in self.__dataclass_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        if self.hang_most < self.hang:
            raise ValueError(f"hang_most: {self.hang_most} is below hang, {self.hang}")

    def step(self, longest_s: float) -> float:
        """Seconds without a finished step that are a hang, of a worker whose longest step takes `longest_s`."""
        return min(max(self.hang, self.hang_factor * longest_s), self.hang_most)

    @property
    def check_s(self) -> float:
        """Seconds between two checks of the deadlines."""
        return min(self.hello, self.loading, self.heartbeat, self.idle, self.hang, self.stop, 4.0) / CHECKS

    @property
    def observe_s(self) -> float:
        """Seconds between two observations of a process, to see whether it is suspended."""
        return min(self.check_s, self.suspended / CHECKS)
