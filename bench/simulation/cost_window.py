"""The time of a simulation in which its costs are measured: requests come steadily."""

import gc

from bench.simulation.event_loop import SimulationLoop


class CostWindow:
    """Begins and ends once, in events of the world. Garbage is collected at its end: the world keeps a record of each
    request, which makes Python look for garbage, and time spent on that is not the gateway's."""

    def __init__(self, loop: SimulationLoop) -> None:
        self.seconds = 0.0
        """Its virtual time."""
        self.ended = 0
        """Requests that ended in it."""
        self.gateway_s = 0.0
        """CPU seconds of the code of the gateways."""
        self.model_s = 0.0
        """CPU seconds of the simulated world."""
        self.garbage = 0
        """Objects that only the garbage collector freed."""
        self._loop = loop
        self._began = 0.0
        self._collects = False

    def begin(self, ended: int) -> None:
        """Begin, when so many requests have ended."""
        self.ended = -ended
        self._began = self._loop.time()
        self._collects = gc.isenabled()
        gc.collect()
        gc.disable()
        self._loop.meter.start()

    def end(self, ended: int) -> None:
        """End, when so many requests have ended."""
        self.ended += ended
        self.seconds = self._loop.time() - self._began
        self.gateway_s, self.model_s = self._loop.meter.read()
        self.garbage = gc.collect()
        self.close()

    def close(self) -> None:
        """Let garbage be collected as before. Repeatable."""
        if self._collects:
            gc.enable()
