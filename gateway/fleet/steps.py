"""Steps of operations. Each is a message to a worker or to the fleet, with a reply and a deadline."""

import asyncio
import functools
from collections.abc import Callable, Mapping

import anyio.to_thread

from actors.actor import AskTimeout, Ref, ReplyTo
from actors.supervision.deadlines import Deadlines
from actors.supervision.local import CommandLine
from actors.supervision.messages import AwaitReady, DrainWorker, RestartWorker, StartWorker, WorkerMessage
from actors.supervision.worker import WorkerState, WorkerStatus
from actors.supervision.worker_actor import END_S
from gateway.fleet.launch import LaunchRefused, WorkerLaunch
from gateway.fleet.member import Member
from gateway.fleet.messages import AddExtra, FleetMessage, OperationReport, Relieve, RemoveWorker, UseCommand
from gateway.fleet.operation import OperationFailed
from gateway.models.messages import (
    KeepModel,
    LoaderMessage,
    LoadModel,
    PinModel,
    ReloadModel,
    ReserveMemory,
    StartOne,
    UnloadModel,
    UnpinModel,
    WorkerDrained,
)

MOVE_S = 5.0
"""Time beyond the grace of a drain, for the router to move the remaining sequences."""
READY_S = 86400.0
"""Deadline of a worker that starts: longer than any checkpoint takes to load."""
RETURN_S = 300.0
"""Deadline of a remote worker that is to join again. It may still join later."""
ANSWER_S = 10.0
"""Deadline of replies that the fleet sends at once."""


class Steps:
    """The steps of one operation. They read what members there are, and change it by messages alone."""

    def __init__(
        self,
        members: Mapping[str, Member],
        fleet: Ref[FleetMessage],
        deadlines: Deadlines,
        grace_s: float,
        models: Ref[LoaderMessage] | None = None,
    ) -> None:
        self.members = members
        self._fleet = fleet
        self._models = models
        self._leave_s = MOVE_S + deadlines.stop + deadlines.term + END_S
        self._grace_s = grace_s

    def report(self, line: str) -> None:
        """Report what was done."""
        self._fleet.tell(OperationReport(line))

    async def drain(self, member: Member, grace_s: float | None = None) -> None:
        """Let a worker finish what it has within the grace (the operation's, unless another one is given), let the
        router move the rest, and stop it for good."""
        grace_s = self._grace_s if grace_s is None else grace_s
        await self._leave(member, functools.partial(DrainWorker, grace_s, MOVE_S), grace_s)

    def keep_stopped(self, member: Member) -> None:
        """Do not let a worker that was drained start with its model."""
        self._tell_models(WorkerDrained(member.name))

    async def dismiss(self, member: Member, grace_s: float | None = None) -> None:
        """Let this incarnation of a worker end as `drain` does. Another one follows, or may join."""
        grace_s = self._grace_s if grace_s is None else grace_s
        await self._leave(member, functools.partial(RestartWorker, grace_s, MOVE_S), grace_s)

    async def renew(self, member: Member) -> WorkerStatus:
        """As `dismiss`, and wait until the worker takes requests again or is given up: its status then. Also starts one
        that was stopped or given up."""
        before = member.status
        if before.running:
            await self.dismiss(member)
        elif self._models is None or member.remote:
            member.worker.ref.tell(StartWorker())
        else:
            await self._models.ask(functools.partial(StartOne, member.name), timeout=READY_S)
        return await self.ready(member, before.incarnation)

    async def ready(self, member: Member, after: int = 0) -> WorkerStatus:
        """Wait until a later incarnation takes requests or the worker is given up: its status then."""
        try:
            ready: Callable[[ReplyTo[WorkerStatus]], WorkerMessage] = functools.partial(AwaitReady, after)
            return await member.worker.ref.ask(ready, timeout=RETURN_S if member.remote else READY_S)
        except AskTimeout:
            return member.status

    async def restart(self, member: Member) -> None:
        """Renew a worker, in its place. Raises `OperationFailed` when it does not come back."""
        self._check_returned(member, await self.renew(member))

    def _check_returned(self, member: Member, status: WorkerStatus) -> None:
        """Report that a worker is back. Raises `OperationFailed` if it is not."""
        if not status.running or (member.remote and status.state is not WorkerState.READY):
            raise OperationFailed(f"{member.name} did not become ready: {status.reason}")
        self.report(f"{member.name} was started again")

    async def relieve(self, member: Member, by: frozenset[str] | None) -> bool:
        """Let another worker take a worker's place: see `Relieve`."""
        return await self._fleet.ask(functools.partial(Relieve, member.name, by), timeout=READY_S)

    async def add_extra(self, launch: WorkerLaunch, checkpoint: str) -> Member:
        """Start another worker for the time of the operation."""
        extra = functools.partial(AddExtra, launch, checkpoint, self._grace_s)
        return await self._fleet.ask(extra, timeout=ANSWER_S)

    async def reserve(self, model: str) -> bool:
        """Take memory for an extra worker until the end of the operation. False if there is none."""
        reserve = functools.partial(ReserveMemory, model)
        return self._models is None or await self._models.ask(reserve, timeout=ANSWER_S)

    async def load(self, model: str) -> None:
        """Load a model. Raises `ModelFailed`."""
        await self._change(functools.partial(LoadModel, model))

    async def unload(self, model: str, *, again: bool) -> None:
        """Unload a model when its streams have ended, and load it `again`. Raises `ModelStays` when they have not ended
        within the grace, and `ModelFailed` when it cannot be loaded."""
        timer = asyncio.get_running_loop().call_later(self._grace_s, self._keep, model)
        try:
            await self._change(functools.partial(ReloadModel if again else UnloadModel, model))
        finally:
            timer.cancel()

    async def exchange(self, model: str) -> None:
        """Let the workers of a model that run here start anew in their places, one after the other, without a grace.
        Its streams continue on others or, where there is none, when one is ready again. Raises `OperationFailed`, and
        `ModelFailed` if it was unloaded meanwhile and cannot be loaded."""
        self._tell_models(PinModel(model))
        try:
            running = [each for each in self.members.values() if each.model == model and not each.remote]
            running = [each for each in running if each.status.running]
            for member in running:
                before = member.status.incarnation
                await self.dismiss(member, 0.0)
                self._check_returned(member, await self.ready(member, before))
            if not running:
                await self.load(model)
        finally:
            self._tell_models(UnpinModel(model))

    async def _change(self, message: Callable[[ReplyTo[bool]], LoaderMessage]) -> None:
        if self._models is None:
            raise OperationFailed("models are not loaded and unloaded here")
        await self._models.ask(message, timeout=READY_S)

    def _keep(self, model: str) -> None:
        self._tell_models(KeepModel(model), urgent=True)

    def _tell_models(self, message: LoaderMessage, *, urgent: bool = False) -> None:
        if self._models is not None and self._models.end is None:
            self._models.tell(message, urgent=urgent)

    async def remove(self, member: Member) -> None:
        """Drain a worker, and forget it."""
        await self.drain(member, member.extra_grace_s)
        self._fleet.tell(RemoveWorker(member.name))

    async def command(self, member: Member, name: str, checkpoint: str) -> CommandLine:
        """Return the command that starts that worker, or one like it of another name, with this checkpoint (empty: its
        current one). Raises `LaunchRefused`."""
        if member.launch is None or member.command is None:
            raise LaunchRefused(f"{member.name} is started on its own machine")
        if not checkpoint and name == member.name:
            return member.command
        if member.launch.like is None:
            raise LaunchRefused(f"there is no other way to start {member.name}")
        return await anyio.to_thread.run_sync(member.launch.like, name, checkpoint or member.checkpoint)

    def use(self, member: Member, command: CommandLine, checkpoint: str) -> None:
        """Start the worker in this way from now on."""
        self._fleet.tell(UseCommand(member.name, command, checkpoint))

    async def _leave(
        self, member: Member, message: Callable[[ReplyTo[WorkerStatus]], WorkerMessage], grace_s: float
    ) -> None:
        try:
            await member.worker.ref.ask(message, timeout=grace_s + self._leave_s)
        except AskTimeout:
            raise OperationFailed(f"{member.name} has not ended within {grace_s + self._leave_s:g} s") from None
