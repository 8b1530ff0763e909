"""Measures the CPU time of the gateway's code apart from that of the simulated world around it."""

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class CpuMeter:
    """Adds the CPU time of this thread up, that of the gateway and that of the model apart. The event loop counts as
    the gateway's, which has one in reality, too."""

    def __init__(self) -> None:
        self._seconds = {True: 0.0, False: 0.0}
        self._gateway = True
        self._since = time.thread_time()

    def gateway_s(self) -> float:
        """Seconds of the gateway so far."""
        self._enter(self._gateway)
        return self._seconds[True]

    def model_s(self) -> float:
        """Seconds of the model so far."""
        self._enter(self._gateway)
        return self._seconds[False]

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
        now = time.thread_time()
        self._seconds[self._gateway] += now - self._since
        self._since = now
        before, self._gateway = self._gateway, gateway
        return before
