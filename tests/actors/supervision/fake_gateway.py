"""A gateway for the tests of orphans: supervises one fake worker and prints its pid. Run as `python FILE MODE`."""

import sys
from pathlib import Path

import anyio

from actors.actor import Actor
from actors.process.logs import configure_logging
from actors.supervision.life import Terms
from actors.supervision.messages import StartWorker
from actors.supervision.worker import WorkerChanged, WorkerState
from actors.supervision.worker_actor import spawn_worker
from actors.system import ActorSystem


class Announcer(Actor[WorkerChanged]):
    """Prints the pid once the worker is ready."""

    def handle(self, message: WorkerChanged) -> None:
        if isinstance(message, WorkerChanged) and message.status.state is WorkerState.READY:
            print(message.status.pid, flush=True)


def command(endpoint: str, incarnation: int) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("fake_worker.py")), endpoint, str(incarnation), sys.argv[1]]


async def main() -> None:
    async with ActorSystem() as system:
        worker = spawn_worker(system, "w", Terms(), command)
        worker.ref.watch(system.spawn("announcer", Announcer()), WorkerChanged)
        worker.ref.tell(StartWorker())
        await anyio.sleep_forever()


configure_logging("gateway", "info")
anyio.run(main)
