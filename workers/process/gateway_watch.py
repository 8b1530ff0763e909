"""A worker never outlives its gateway: its standard input is a pipe that the gateway holds open."""

import os
import threading
from collections.abc import Callable

_READ_BYTES = 4096


class GatewayWatch:
    """Waits for the end of a file descriptor on a thread of its own, so that it works when everything else is stuck."""

    def __init__(
        self,
        on_gone: Callable[[], None],
        *,
        descriptor: int = 0,
        grace_s: float = 5.0,
        kill: Callable[[], None],
    ) -> None:
        """At the end of the file `on_gone` is called, on the watching thread; `grace_s` later, `kill`."""
        self._on_gone = on_gone
        self._descriptor = descriptor
        self._grace_s = grace_s
        self._kill = kill
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """The process ends by itself: there is nothing left to kill."""
        self._ended.set()

    def _run(self) -> None:
        try:
            while os.read(self._descriptor, _READ_BYTES):
                pass
        except OSError:  # closed from the start: nobody holds the other end
            pass
        if self._ended.is_set():
            return
        try:
            self._on_gone()
        finally:
            if not self._ended.wait(self._grace_s):
                self._kill()
