"""A gateway for the tests of orphans: supervises one fake worker and prints its pid. Run as `python FILE MODE`."""

import sys
from pathlib import Path

import anyio

from actors.process.exit_cause import Origin
from actors.process.logs import configure_logging
from actors.supervision.worker_process import WorkerProcess, WorkerState, WorkerStatus


class Announcer:
    """Prints the pid once the worker is up: READY, or, of one that never says Hello, when its stderr says so."""

    def worker_event(self, worker: str, incarnation: int, event: object) -> None:
        pass

    def worker_changed(self, status: WorkerStatus) -> None:
        if status.state is WorkerState.READY:
            print(status.pid, flush=True)

    def worker_lost(self, worker: str, incarnation: int, reason: str, origin: Origin) -> None:
        pass


def command(endpoint: str, incarnation: int) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("fake_worker.py")), endpoint, str(incarnation), sys.argv[1]]


configure_logging("gateway", "info")
anyio.run(WorkerProcess("w", command, Announcer()).run)
