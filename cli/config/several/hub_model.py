"""A model of the hub that is downloaded when a request needs it."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import anyio.to_thread

from actors.supervision.local import CommandLine
from cli.config.errors import CommandFailed
from cli.config.launch import like_command, worker_command
from cli.config.model import ChosenModel, chosen_name, is_builtin, takes_projector
from cli.config.model_settings import ModelSettings
from cli.config.settings import Settings
from cli.config.several.hub_fetch import fetch
from cli.config.several.memory_plan import MemoryPlan
from cli.config.several.planned_model import PlannedModel, configured_terms
from gateway.fleet.launch import LaunchRefused, WorkerLaunch
from gateway.models.context_shares import ModelMemory
from gateway.models.terms import ModelTerms, ModelUnavailable
from protocol.hub_id import HubId
from workers.errors import LoadRefused
from workers.hub.download import Download, WithProjector
from workers.hub.resolve import hub_id
from workers.process.spec import WorkerSpec


def absent_hub_model(settings: Settings) -> HubId | None:
    """Return the hub id that the settings of one model name, if the cache does not have all of it. Raises
    `CheckpointError`."""
    if is_builtin(settings):
        return None
    model = hub_id(settings.model)
    if model is None:
        return None
    projector: WithProjector = "with" if takes_projector(settings) else "without"
    return None if Download(model, projector=projector).cached() is not None else model


@dataclass
class HubModel:
    """A model that is not on this machine when the server starts. Its workers are named, and get their specifications
    when it has been prepared."""

    settings: Settings
    """Settings of a server with this model alone."""
    wanted: ModelSettings
    hub: HubId
    plan: MemoryPlan
    first: int
    """The number of its first worker."""
    _memory: ModelMemory | None = None
    """The memory for which the context was chosen."""
    _context: int = 0
    _specs: Sequence[WorkerSpec] = ()

    @property
    def name(self) -> str:
        return chosen_name(self.settings)

    def launches(self) -> list[WorkerLaunch]:
        """Its workers."""
        return [
            WorkerLaunch(
                f"w{self.first + index}",
                self.name,
                functools.partial(self._command, index),
                standby=index >= self.wanted.workers,
                like=functools.partial(self._like, index),
                on_demand=True,
            )
            for index in range(self.wanted.workers + self.wanted.standby)
        ]

    def terms(self) -> ModelTerms:
        """Its terms before it is prepared."""
        return replace(configured_terms(self.settings, self.wanted, self.name), prepare=self.prepare)

    async def prepare(self) -> ModelTerms:
        """Download what the cache lacks, in a process of its own, and choose the context beside the other models. See
        `ModelTerms.prepare`."""
        path = await fetch(self.hub)
        try:
            return await anyio.to_thread.run_sync(self._adopt, path)
        except (CommandFailed, LoadRefused, OSError) as error:
            raise ModelUnavailable(str(error)) from error

    def _adopt(self, path: Path) -> ModelTerms:
        """Raises `CommandFailed`, `LoadRefused` and `OSError`."""
        planned = PlannedModel.of(self.settings, self.wanted, ChosenModel(self.name, path))
        if self._memory != planned.memory:
            (self._context,) = self.plan.add({self.name: planned.memory}).values()
            self._memory = planned.memory
        self._specs = planned.specs(self._context, self.first)
        return replace(planned.terms(self._context), prepare=self.prepare)

    def _command(self, index: int, endpoint: str, incarnation: int) -> Sequence[str]:
        return worker_command(self._specs[index])(endpoint, incarnation)

    def _like(self, index: int, name: str, checkpoint: str) -> CommandLine:
        if not self._specs:
            raise LaunchRefused(f"{self.hub} is not on this machine yet: a request for {self.name} downloads it")
        return like_command(self._specs[index], name, checkpoint)
