"""Another client's probes while an attack runs."""

import threading
import time
from types import TracebackType

from tests.attacks.server import AttackedServer


class Probing:
    """Asks `/health/live` again and again in a thread of its own, until the block ends."""

    def __init__(self, server: AttackedServer) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answered = 0
        """Probes that were answered with 200."""
        self.failed = 0
        self.slowest_s = 0.0
        """The longest time to an answer, by the wall clock of a busy machine."""

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.perf_counter()
            if self._server.is_live():
                self.answered += 1
            else:
                self.failed += 1
            self.slowest_s = max(self.slowest_s, time.perf_counter() - began)
            self._over.wait(0.01)

    def __enter__(self) -> "Probing":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
