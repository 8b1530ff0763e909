"""Replaces all workers of a model, one at a time, without losing a stream, a request or capacity."""

from collections.abc import Callable

from actors.supervision.worker import WorkerState
from actors.supervision.worker_process import WorkerProcess
from gateway.fleet.fleet import Fleet, Member
from gateway.fleet.launch import LaunchRefused, WorkerLaunch
from gateway.routing.worker_handle import Role
from gateway.routing.worker_pool import WorkerPool


class OperationFailed(Exception):
    """Raised by what cannot go on; what it has done so far stays, but for the extra worker."""


class Replacement:
    """The replacement of all workers of one model that this machine runs, while it runs.

    A ready worker of the new generation always stands by: a standby that was there, started anew first, or an extra
    one that is started for the time. It changes places with an old one, which then drains, starts anew, and is the
    next to stand by. A worker that dies meanwhile changes nothing: whoever stands by takes its place, and it is started
    anew like the others. However it ends, `release_extras` is to follow.
    """

    def __init__(
        self, fleet: Fleet, roster: WorkerPool, model: str, say: Callable[[str], None], grace_s: float
    ) -> None:
        self._fleet = fleet
        self._roster = roster
        self._model = model
        self._say = say
        self._grace_s = grace_s
        self._old = [
            member for member in fleet if member.model == model and member.extra_grace_s is None and not member.remote
        ]
        self._new: list[Member] = []

    async def run(self, checkpoint: str) -> None:
        """Raises `OperationFailed` and `LaunchRefused`. No active worker is touched before a new one is ready."""
        if not self._old:
            return
        if not any(self._stands_by(member) for member in self._old):
            await self._start_extra(checkpoint)
        while self._old:
            member = next(filter(self._stands_by, self._old), self._old[0])
            if not self._stands_by(member):
                await self._relieve(member)
            await self._renew(member, checkpoint)
            self._old.remove(member)
            self._new.append(member)

    def _stands_by(self, member: Member) -> bool:
        return self._fleet.seat(member).role is Role.STANDBY

    async def _renew(self, member: Member, checkpoint: str) -> None:
        process = _process(member)
        before = process.command
        process.command = await self._fleet.command(member, member.name, checkpoint)
        await self._fleet.renew(member, self._grace_s)
        if member.running:
            member.checkpoint = checkpoint or member.checkpoint
            self._say(f"{member.name} was started again")
            return
        reason = process.status.reason
        if checkpoint:  # rather what it was than nothing
            process.command = before
            await self._fleet.renew(member, self._grace_s)
        raise OperationFailed(f"{member.name} did not become ready: {reason}")

    async def _relieve(self, member: Member) -> None:
        """Let a new worker that stands by and is ready take its place, as soon as there is one; the loss of another
        worker may do so first."""

        def ready() -> list[Member]:
            return [new for new in self._new if self._stands_by(new) and self._fleet.seat(new).ready]

        await self._fleet.until(
            lambda: self._stands_by(member) or bool(ready()) or not any(new.running for new in self._new)
        )
        if self._stands_by(member):
            return
        for spare in ready():
            self._roster.swap(self._fleet.seat(member), self._fleet.seat(spare))
            return
        raise OperationFailed("no new worker is left to take the place of an old one")

    async def _start_extra(self, checkpoint: str) -> None:
        like = self._old[0]
        name = _free_name({member.name for member in self._fleet})
        command = await self._fleet.command(like, name, checkpoint)
        made = like.launch.like if like.launch is not None else None
        extra = self._fleet.add(WorkerLaunch(name, self._model, command, standby=True, like=made))
        extra.checkpoint = checkpoint or like.checkpoint
        extra.extra_grace_s = self._grace_s
        self._say(f"{name} is started for the time")
        await self._fleet.until(lambda: not extra.running or extra.state is WorkerState.READY)
        if not extra.running:
            raise OperationFailed(f"{name} did not become ready: {extra.process.status.reason}")
        self._new.append(extra)


async def release_extras(fleet: Fleet, roster: WorkerPool, say: Callable[[str], None]) -> None:
    """Let the extra workers leave, whatever became of the operation that they were started for. One stays while it
    serves and nobody can take its place: the next operation sees to it."""
    for extra in [member for member in fleet if member.extra_grace_s is not None]:
        if fleet.seat(extra).role is Role.ACTIVE and not await _hand_over(fleet, roster, extra):
            say(f"{extra.name} stays, for no other worker can take its place")
            continue
        await fleet.remove(extra, extra.extra_grace_s or 0.0)
        say(f"{extra.name} has left")


async def _hand_over(fleet: Fleet, roster: WorkerPool, extra: Member) -> bool:
    """Let an extra worker stand by. False when it serves, and those that stand by cannot."""
    seat = fleet.seat(extra)

    def ready() -> bool:
        return any(fleet.seat(other).ready for other in _standbys(fleet, extra))

    await fleet.until(
        lambda: seat.role is Role.STANDBY or ready() or not any(_comes(other) for other in _standbys(fleet, extra))
    )
    if seat.role is Role.ACTIVE and (ready() or not extra.running):
        spare = min(_standbys(fleet, extra), key=lambda other: not fleet.seat(other).ready)
        roster.swap(seat, fleet.seat(spare))
    return seat.role is Role.STANDBY


def _comes(member: Member) -> bool:
    """It is on its way. One of another machine that is not here may never be: it has another checkpoint, say."""
    return member.running and (not member.remote or member.process.status.pid is not None)


def _standbys(fleet: Fleet, extra: Member) -> list[Member]:
    """The workers in whose place an extra one serves, or may: there is always one while it does."""
    return [
        member
        for member in fleet
        if member.extra_grace_s is None and member.model == extra.model and fleet.seat(member).role is Role.STANDBY
    ]


def _process(member: Member) -> WorkerProcess:
    if not isinstance(member.process, WorkerProcess):
        raise LaunchRefused(f"{member.name} is started on its own machine")
    return member.process


def _free_name(taken: set[str]) -> str:
    return next(name for number in range(len(taken) + 1) if (name := f"extra{number}") not in taken)
