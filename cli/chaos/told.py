"""What the workers of a server of one's own are told to do to themselves: one fault for the next life of one worker.

The server reads it from a folder when it starts a worker, and whoever breaks the server writes it there before: the two
are processes that share nothing else. A fault is read once, so that the life after that is whole again.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cli.model import ChosenModel
from cli.serve import worker_command, worker_launches, worker_specs
from cli.settings import Settings
from gateway.launch import WorkerLaunch
from workers.faults import Fault
from workers.spec import WorkerSpec


@dataclasses.dataclass(frozen=True)
class Told:
    """A folder with a file for each worker whose next life is to have a fault. Both ends use it."""

    folder: Path

    def tell(self, worker: str, fault: Fault) -> None:
        """Its next life is to have this one."""
        file = self._file(worker)
        part = file.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(fault))
        part.replace(file)

    def take(self, worker: str) -> tuple[Fault, ...]:
        """What the life that starts now is to have; the next one has nothing."""
        file = self._file(worker)
        try:
            fault = msgspec.json.decode(file.read_bytes(), type=Fault)
        except FileNotFoundError:
            return ()
        file.unlink()
        return (fault,)

    def launches(self, settings: Settings, model: ChosenModel) -> list[WorkerLaunch]:
        """The workers of `baton serve`, each life of which is told."""
        specs = worker_specs(settings, model)
        return [
            dataclasses.replace(launch, command=functools.partial(self._command, spec))
            for launch, spec in zip(worker_launches(settings, model), specs, strict=True)
        ]

    def _command(self, spec: WorkerSpec, endpoint: str, incarnation: int) -> Sequence[str]:
        return worker_command(msgspec.structs.replace(spec, faults=self.take(spec.name)))(endpoint, incarnation)

    def _file(self, worker: str) -> Path:
        return self.folder / f"{worker}.json"
