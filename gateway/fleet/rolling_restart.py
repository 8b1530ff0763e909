"""Replaces all workers of a model, one at a time, without losing a stream, nor capacity where memory allows."""

from collections.abc import Iterable

from actors.supervision.worker import WorkerState
from gateway.fleet.launch import LaunchRefused, WorkerLaunch
from gateway.fleet.member import Member
from gateway.fleet.operation import OperationFailed
from gateway.fleet.steps import Steps
from gateway.routing.worker_handle import Role
from gateway.routing.worker_pool import WorkerPool


class RollingRestart:
    """The replacement of all workers of one model that this machine runs, while it runs.

    A ready worker of the new generation always stands by: a standby that was there, started anew first, or an extra
    one that is started for the time. It changes places with an old one, which then drains, starts anew, and is the
    next standby. A worker that dies meanwhile changes nothing: a standby takes its place, and it is started anew like
    the others. However it ends, `release_extras` is to follow.

    If the memory budget has no room for an extra worker, each worker starts anew in its place: its streams continue on
    the others or, where there is none, when it is ready again.
    """

    def __init__(self, steps: Steps, pool: WorkerPool, model: str) -> None:
        self._steps = steps
        self._pool = pool
        self._model = model
        self._old = [
            member
            for member in steps.members.values()
            if member.model == model and member.extra_grace_s is None and not member.remote
        ]
        self._new: list[Member] = []

    async def run(self, checkpoint: str) -> None:
        """Raises `OperationFailed` and `LaunchRefused`. No active worker is touched before a new one is ready, unless
        there is no memory for that."""
        if not self._old:
            return
        if not any(self._stands_by(member) for member in self._old) and not await self._start_extra(checkpoint):
            for member in self._old:
                await self._renew(member, checkpoint)
            return
        while self._old:
            member = next(filter(self._stands_by, self._old), self._old[0])
            if not self._stands_by(member):
                await self._relieve(member)
            await self._renew(member, checkpoint)
            self._old.remove(member)
            self._new.append(member)

    def _stands_by(self, member: Member) -> bool:
        return self._pool[member.name].role is Role.STANDBY

    async def _renew(self, member: Member, checkpoint: str) -> None:
        steps = self._steps
        command = await steps.command(member, member.name, checkpoint)
        steps.use(member, command, checkpoint or member.checkpoint)
        status = await steps.renew(member)
        if status.running:
            steps.report(f"{member.name} was started again")
            return
        if checkpoint and member.command is not None:  # rather what it was than nothing
            steps.use(member, member.command, member.checkpoint)
            await steps.renew(member)
        raise OperationFailed(f"{member.name} did not become ready: {status.reason}")

    async def _relieve(self, member: Member) -> None:
        """Let a new worker that stands by take its place, as soon as one is ready; the loss of another worker may do so
        first."""
        if not await self._steps.relieve(member, by=frozenset(new.name for new in self._new)):
            raise OperationFailed("no new worker is left to take the place of an old one")

    async def _start_extra(self, checkpoint: str) -> bool:
        """Start an extra worker, and wait until it is ready. False without memory for it."""
        steps, like = self._steps, self._old[0]
        name = _free_name(steps.members)
        command = await steps.command(like, name, checkpoint)
        if like.launch is None:
            raise LaunchRefused(f"{like.name} is started on its own machine")
        launch = WorkerLaunch(name, self._model, command, standby=True, like=like.launch.like)
        if not await steps.reserve(self._model):
            steps.report(f"memory_budget has no room for another worker of {self._model}: each starts in its place")
            return False
        extra = await steps.add_extra(launch, checkpoint or like.checkpoint)
        steps.report(f"{name} is started for the time")
        status = await steps.ready(extra)
        if status.state is not WorkerState.READY:
            raise OperationFailed(f"{name} did not become ready: {status.reason}")
        self._new.append(extra)
        return True


async def release_extras(steps: Steps, pool: WorkerPool) -> None:
    """Let the extra workers leave, whatever became of the operation that they were started for. One stays while it
    serves and no other can take its place: the next operation sees to it."""
    for extra in [member for member in steps.members.values() if member.extra_grace_s is not None]:
        if pool[extra.name].role is Role.ACTIVE and not await steps.relieve(extra, by=None):
            steps.report(f"{extra.name} stays, for no other worker can take its place")
            continue
        await steps.remove(extra)
        steps.report(f"{extra.name} has left")


def _free_name(taken: Iterable[str]) -> str:
    names = set(taken)
    return next(name for number in range(len(names) + 1) if (name := f"extra{number}") not in names)
