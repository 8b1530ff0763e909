"""What the workers of a server of one's own are told to do to themselves: one fault for the next life of one worker.

The server looks for it when it starts a worker, and whoever breaks the server says it before, through a pipe: the two
are processes that share nothing else, and a pipe leaves nothing behind. A fault is told once, so that the life after
that is whole again.
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
class Teller:
    """The end of whoever breaks the server."""

    pipe: Connection

    def tell(self, worker: str, fault: Fault) -> None:
        """Its next life is to have this one."""
        self.pipe.send_bytes(msgspec.json.encode((worker, fault)))


@dataclasses.dataclass(frozen=True)
class Told:
    """The server's end, which travels to it."""

    pipe: Connection
    faults: dict[str, Fault] = dataclasses.field(default_factory=dict)
    """By worker: those that no life has had yet."""

    def take(self, worker: str) -> tuple[Fault, ...]:
        """What the life that starts now is to have: what was told last. The next one has nothing."""
        try:
            while self.pipe.poll():
                name, fault = msgspec.json.decode(self.pipe.recv_bytes(), type=tuple[str, Fault])
                self.faults[name] = fault
        except EOFError:
            pass  # whoever tells is gone, and the server ends as well
        return (self.faults.pop(worker),) if worker in self.faults else ()

    def launches(self, settings: Settings, model: ChosenModel) -> list[WorkerLaunch]:
        """The workers of `baton serve`, each life of which is told."""
        specs = worker_specs(settings, model)
        return [
            dataclasses.replace(launch, command=functools.partial(self._command, spec))
            for launch, spec in zip(worker_launches(settings, model), specs, strict=True)
        ]

    def _command(self, spec: WorkerSpec, endpoint: str, incarnation: int) -> Sequence[str]:
        return worker_command(msgspec.structs.replace(spec, faults=self.take(spec.name)))(endpoint, incarnation)
