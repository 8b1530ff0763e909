"""The workers of a gateway: kept alive, watched, and drained or started again when somebody asks."""

import math
from collections.abc import Callable, Iterator

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup

from actors.process.exit_cause import Origin
from actors.supervision.policy import Policy
from actors.supervision.remote_worker import RemoteWorker
from actors.supervision.supervisor import Supervisor
from actors.supervision.worker import Deadlines, WorkerState, WorkerStatus
from actors.supervision.worker_process import WorkerProcess
from gateway.fleet.launch import CommandLine, LaunchRefused, WorkerLaunch
from gateway.routing.router import Router
from gateway.routing.worker_handle import Role, WorkerHandle
from protocol.events import Event

MOVE_S = 5.0
"""What a worker gets beyond the grace of its drain, for the gateway to take away what it still has."""

RETURN_S = 300.0
"""How long a restart waits for a remote worker to come back; it is let in later, too."""

_log = structlog.get_logger("gateway.fleet.fleet")


class Member:
    """One worker of the fleet: its process, and how it was launched. A remote one was not: its machine did."""

    def __init__(self, process: Supervisor, model: str, launch: WorkerLaunch | None) -> None:
        self.process = process
        self.model = model
        self.launch = launch
        self.running = False
        """Its supervisor runs; false once it was stopped or given up."""
        self.checkpoint = ""
        """What it serves instead of what it was launched with; empty is that."""
        self.extra_grace_s: float | None = None
        """Of one that is there only for the time of an operation: how long it may take to finish what it has. It leaves
        as soon as another worker can take its place."""

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def remote(self) -> bool:
        """It runs on another machine."""
        return self.launch is None

    @property
    def state(self) -> WorkerState:
        return self.process.status.state


class Fleet:
    """Owns the processes. Hears what they say (`WorkerListener`) and passes it on to the router."""

    def __init__(
        self,
        router: Router,
        *,
        on_status: Callable[[WorkerStatus], None] | None = None,
        policy: Policy | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self.gave_up = anyio.Event()
        """Every worker was given up: nothing is left to serve with."""
        self._router = router
        self._on_status = on_status
        self._policy = policy
        self._deadlines = deadlines
        self.refusals = router.refusals
        self._members: dict[str, Member] = {}
        self._group: TaskGroup | None = None
        self._changed = anyio.Event()
        self._stopping = False

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __getitem__(self, name: str) -> Member:
        """Raises `KeyError`."""
        return self._members[name]

    def add(self, launch: WorkerLaunch) -> Member:
        """Another worker; it starts now, or with the fleet. Raises `ValueError` for a name twice."""
        process = WorkerProcess(
            launch.name,
            launch.command,
            self,
            policy=self._policy,
            deadlines=self._deadlines,
            refusals=self.refusals,
        )
        self._router.add(process, launch.name, launch.model, Role.STANDBY if launch.standby else Role.ACTIVE)
        member = self._members[launch.name] = Member(process, launch.model, launch)
        self._start(member)
        return member

    def find(self, name: str) -> Member | None:
        return self._members.get(name)

    def remote(self, name: str, model: str) -> RemoteWorker:
        """The worker of another machine that has this name; a new one when there is none. Raises `ValueError` when the
        name is that of a worker of this machine."""
        member = self._members.get(name)
        if member is None:
            process = RemoteWorker(name, self, deadlines=self._deadlines, refusals=self.refusals)
            self._router.add(process, name, model)
            member = self._members[name] = Member(process, model, None)
            self._start(member)
            return process
        if not isinstance(member.process, RemoteWorker):
            raise ValueError(f"worker {name!r} is not a remote one")
        return member.process

    async def run(self) -> None:
        """Keep the workers alive until this is cancelled, which kills them; ask them to `stop` before."""
        async with anyio.create_task_group() as self._group:
            for member in self:
                self._start(member)
            await anyio.sleep_forever()

    async def stop(self, within_s: float) -> None:
        """Stop every worker for good, and wait for their ends. None starts any more."""
        self._stopping = True
        for member in self:
            member.process.stop_nowait()
        with anyio.move_on_after(within_s):
            await self.until(lambda: not any(member.running for member in self))

    def reasons(self) -> list[str]:
        """Why each worker that was given up was."""
        return [
            f"worker {member.name}: {member.process.status.reason}"
            for member in self
            if member.state is WorkerState.GIVEN_UP
        ]

    # What operators ask for, one worker at a time.

    async def drain(self, member: Member, grace_s: float) -> None:
        """Let a worker finish what it has within the grace, move the rest elsewhere, and stop it for good."""
        incarnation = member.process.status.incarnation
        if member.running:
            member.process.drain_nowait(grace_s + MOVE_S)
            await self._empty(member, incarnation, grace_s)
        await self.until(lambda: not member.running)

    async def renew(self, member: Member, grace_s: float) -> None:
        """As `drain`, but the worker starts again; also one that was stopped or given up. Waits until it takes
        requests, or is given up."""
        incarnation = member.process.status.incarnation
        if member.running:
            member.process.restart_nowait(grace_s + MOVE_S)
            await self._empty(member, incarnation, grace_s)
        else:
            self._start(member)
        with anyio.move_on_after(RETURN_S if member.remote else math.inf):
            await self.until(lambda: _settled(member, incarnation))

    async def dismiss(self, member: Member, grace_s: float) -> None:
        """Let a remote worker finish what it has within the grace, and go. It may come again."""
        incarnation = member.process.status.incarnation
        member.process.restart_nowait(grace_s + MOVE_S)
        await self._empty(member, incarnation, grace_s)
        await self.until(lambda: _gone(member, incarnation))

    async def remove(self, member: Member, grace_s: float) -> None:
        """As `drain`, and forget it."""
        await self.drain(member, grace_s)
        del self._members[member.name]
        self._router.remove(member.name)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something holds that depends on what the workers say or on which of them run."""
        while not true():
            await self._changed.wait()

    async def command(self, member: Member, name: str, checkpoint: str) -> CommandLine:
        """How that worker, or one like it of another name, is started to serve what it serves now or another
        checkpoint. Raises `LaunchRefused`."""
        if member.launch is None or not isinstance(member.process, WorkerProcess):
            raise LaunchRefused(f"{member.name} is started on its own machine")
        if not checkpoint and name == member.name:
            return member.process.command
        if member.launch.like is None:
            raise LaunchRefused(f"there is no other way to start {member.name}")
        return await anyio.to_thread.run_sync(member.launch.like, name, checkpoint or member.checkpoint)

    def seat(self, member: Member) -> WorkerHandle:
        """What the router knows of it."""
        return self._router.pool[member.name]

    async def _empty(self, member: Member, incarnation: int, grace_s: float) -> None:
        """Until that incarnation has nothing more. What it still has after the grace goes on elsewhere."""
        with anyio.move_on_after(grace_s):
            await self.until(lambda: _gone(member, incarnation))
        if not _gone(member, incarnation):
            self._router.migrate(member.name)

    def _start(self, member: Member) -> None:
        if self._stopping or self._group is None:
            return
        member.running = True
        self._group.start_soon(self._keep, member)

    async def _keep(self, member: Member) -> None:
        try:
            await member.process.run()
        finally:
            member.running = False
            self._notify()
        if member.state is WorkerState.GIVEN_UP:
            left = sum(other.state is not WorkerState.GIVEN_UP for other in self)
            if left:
                _log.error("worker_is_out", worker=member.name, left=left, reason=member.process.status.reason)
            else:  # whoever sees it end says why
                self.gave_up.set()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # What the workers say (`WorkerListener`).

    def worker_event(self, worker: str, incarnation: int, event: Event) -> None:
        """A step, a beat, an end or a failure."""
        self._router.worker_event(worker, incarnation, event)

    def worker_changed(self, status: WorkerStatus) -> None:
        """The router hears of it first, then who waits here, then whoever started the gateway."""
        self._router.worker_changed(status)
        self._notify()
        if self._on_status is not None:
            self._on_status(status)

    def worker_lost(self, worker: str, incarnation: int, reason: str, origin: Origin) -> None:
        """An incarnation is gone."""
        self._router.worker_lost(worker, incarnation, reason, origin)


def _gone(member: Member, incarnation: int) -> bool:
    """That incarnation's process takes no more part: another one follows, or none."""
    status = member.process.status
    return status.incarnation != incarnation or status.pid is None


def _settled(member: Member, incarnation: int) -> bool:
    """A later incarnation takes requests, or there will be none."""
    status = member.process.status
    return not member.running or (status.incarnation > incarnation and status.state is WorkerState.READY)
