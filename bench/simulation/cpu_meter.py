"""Measures the CPU time of the gateway's code apart from that of the simulated world around it."""

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class CpuMeter:
    """Divides the CPU time of this thread between the gateway and the model. The event loop counts as the gateway's,
    which has one in reality, too.

    Each change of sides takes the wall time, which is cheap to read, and the CPU time since the last `start` is divided
    in the same ratio: what other processes take of the wall time, they take of both sides alike.
    """

    def __init__(self) -> None:
        self._in_gateway = True
        self.start()

    def start(self) -> None:
        """Begin to measure anew."""
        self._wall = {True: 0.0, False: 0.0}
        self._cpu = time.thread_time()
        self._since = time.perf_counter()

    def read(self) -> tuple[float, float]:
        """CPU seconds of the gateway and of the model since the start."""
        self._enter(self._in_gateway)
        cpu, wall = time.thread_time() - self._cpu, self._wall[True] + self._wall[False]
        return cpu * self._wall[True] / wall, cpu * self._wall[False] / wall

    def gateway(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function of the gateway."""
        return self._call(True, function, *args, **kwargs)

    def model(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function of the model."""
        return self._call(False, function, *args, **kwargs)

    def _call(self, gateway: bool, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        before = self._enter(gateway)
        try:
            return function(*args, **kwargs)
        finally:
            self._enter(before)

    def _enter(self, gateway: bool) -> bool:
        now = time.perf_counter()
        self._wall[self._in_gateway] += now - self._since
        self._since = now
        before, self._in_gateway = self._in_gateway, gateway
        return before
