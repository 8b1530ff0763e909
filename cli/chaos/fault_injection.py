"""Plans one fault for the next incarnation of a worker of an owned server.

The owned server is another process, and asks for planned faults whenever it starts a worker. The two share a pipe and
nothing else, so nothing is left behind. A fault is delivered once: the incarnation after that has none.
"""

import dataclasses
import functools
from collections.abc import Sequence
from multiprocessing.connection import Connection

import msgspec

from cli.config.launch import worker_command, worker_launches, worker_specs
from cli.config.model import ChosenModel
from cli.config.settings import Settings
from gateway.fleet.launch import WorkerLaunch
from workers.faults.plan import Fault
from workers.process.spec import WorkerSpec


@dataclasses.dataclass(frozen=True)
class FaultSender:
    """The end of the process that injects the faults."""

    pipe: Connection

    def send(self, worker: str, fault: Fault) -> None:
        """Plan a fault for the worker's next incarnation. It replaces one that was not delivered yet."""
        self.pipe.send_bytes(msgspec.json.encode((worker, fault)))


@dataclasses.dataclass(frozen=True)
class FaultReceiver:
    """The server's end. It is pickled when the server's process is started."""

    pipe: Connection
    faults: dict[str, Fault] = dataclasses.field(default_factory=dict)
    """Faults that were not delivered yet, by worker."""

    def take(self, worker: str) -> tuple[Fault, ...]:
        """Return the fault of the incarnation that starts now, if there is one, and forget it."""
        try:
            while self.pipe.poll():
                name, fault = msgspec.json.decode(self.pipe.recv_bytes(), type=tuple[str, Fault])
                self.faults[name] = fault
        except EOFError:
            pass  # the sender's process is gone, and the server ends as well
        return (self.faults.pop(worker),) if worker in self.faults else ()

    def launches(self, settings: Settings, model: ChosenModel) -> list[WorkerLaunch]:
        """Return the workers of `baton serve`, each of which is started with its planned fault."""
        specs = worker_specs(settings, model)
        return [
            dataclasses.replace(launch, command=functools.partial(self._command, spec))
            for launch, spec in zip(worker_launches(settings, model), specs, strict=True)
        ]

    def _command(self, spec: WorkerSpec, endpoint: str, incarnation: int) -> Sequence[str]:
        return worker_command(msgspec.structs.replace(spec, faults=self.take(spec.name)))(endpoint, incarnation)
