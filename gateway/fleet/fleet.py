"""The workers of a gateway: the actor that supervises them, and carries out what operators ask for."""

import functools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import anyio
import structlog

from actors.actor import Actor, ActorStopped, DeferredReplies, Ref, ReplyTo, Terminated
from actors.join.request import JoinRequest
from actors.supervision.deadlines import Deadlines
from actors.supervision.life import Terms
from actors.supervision.local import CommandLine
from actors.supervision.messages import ProgramChanged, StartWorker
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker import WorkerChanged, WorkerNotice, WorkerState, WorkerStatus
from actors.supervision.worker_actor import spawn_worker
from actors.transport.rejections import Rejection
from gateway.fleet import messages as msg
from gateway.fleet import operations
from gateway.fleet.admission import Objection, differs, objection
from gateway.fleet.launch import LaunchRefused, WorkerLaunch
from gateway.fleet.member import Member
from gateway.fleet.operation import MAX_LINES, Busy, Operation, OperationFailed, OperationOutcome
from gateway.fleet.rolling_restart import release_extras
from gateway.fleet.steps import Steps
from gateway.models.messages import LoaderMessage, ModelFailed, PinModel, UnpinModel, WorkerAdded, WorkerRemoved
from gateway.routing.router import Router
from gateway.routing.worker_handle import Role

SETTLED = frozenset({WorkerState.READY, WorkerState.GIVEN_UP, WorkerState.STOPPED})
SHARED = (
    "resumable streams and stored responses are known to the gateway that made them; limits of API keys hold at each "
    "gateway, or with the same redis_url for all gateways together"
)
_log = structlog.get_logger("gateway.fleet.fleet")

Script = Callable[[Steps], Coroutine[Any, Any, None]]


class Fleet(Actor[msg.FleetMessage]):
    """Supervises the workers: starts and stops them, lets remote ones join, and runs one operation at a time. The
    router watches them, too. Its own watchers get `FleetGaveUp`."""

    def __init__(
        self,
        router: Router,
        routes: Ref[WorkerNotice],
        launches: Sequence[WorkerLaunch],
        *,
        on_status: Callable[[WorkerStatus], None] | None = None,
        policy: RestartPolicy | None = None,
        deadlines: Deadlines | None = None,
        models: Ref[LoaderMessage] | None = None,
        on_removed: Callable[[str], None] = lambda worker: None,
    ) -> None:
        """`routes` is the router's own ref. `on_status` is called with each change of a worker, and `on_removed` with
        the name of a remote worker that may join no more. `models` starts and stops the workers with their models;
        without it, they start at once. Raises `ValueError` for a name twice."""
        names = [launch.name for launch in launches]
        if len(set(names)) < len(names):
            raise ValueError(f"two workers have one name: {', '.join(sorted(names))}")
        self.members: dict[str, Member] = {}
        self._router = router
        self._routes = routes
        self._models = models
        self._launches = launches
        self._on_status = on_status
        self._on_removed = on_removed
        self._terms = Terms(policy, deadlines or Deadlines(), router.rejections)
        self._latest: Operation | None = None
        self._shares = False
        """A worker that joined serves other gateways, too, which was logged."""
        self._operating = anyio.CancelScope()
        self._operable = True
        self._stopping = False
        self._deferred = DeferredReplies()

    def started(self) -> None:
        for launch in self._launches:
            self._add(launch)

    def handle(self, message: msg.FleetMessage) -> None:
        """See `FleetMessage`."""
        try:
            self._handle(message)
        finally:
            self._deferred.settle()

    def _handle(self, message: msg.FleetMessage) -> None:
        match message:
            case WorkerChanged(status):
                self._changed(status)
            case JoinRequest():
                self._join(message)
            case msg.LatestOperation(answer):
                answer.send(self._latest)
            case (
                msg.DrainOne()
                | msg.RemoveRemote()
                | msg.RestartOne()
                | msg.RestartAll()
                | msg.ReplaceAll()
                | msg.ChangeModel()
            ):
                self._begin(message)
            case msg.EndOperations():
                self._operable = False
                self._operating.cancel()
            case msg.AwaitSettled(reply):
                self._deferred.add(reply, self._unserved)
            case msg.StopAll(ended):
                self._stop(ended)
            case msg.AddExtra(launch, checkpoint, grace_s, added):
                added.send(self._add(launch, checkpoint, grace_s))
            case msg.UseCommand(worker, command, checkpoint):
                self._use(self.members[worker], command, checkpoint)
            case msg.RemoveWorker(worker):
                self._remove(worker)
            case msg.Relieve(worker, by, relieved):
                self._deferred.add(relieved, functools.partial(self._relieved, worker, by))
            case msg.OperationReport(line, outcome):
                self._report(line, outcome)
            case Terminated():
                pass  # its last `WorkerChanged` said that it does not run

    def dropped(self, message: msg.FleetMessage) -> None:
        if isinstance(message, JoinRequest):
            message.decline("the gateway is shutting down")

    # Workers.

    def _add(self, launch: WorkerLaunch, checkpoint: str = "", extra_grace_s: float | None = None) -> Member:
        def command(endpoint: str, incarnation: int) -> Sequence[str]:
            """The current command of the member."""
            command = self.members[launch.name].command
            assert command is not None, "it was launched here"
            return command(endpoint, incarnation)

        if launch.name in self.members:
            raise ValueError(f"there is a worker {launch.name!r} already")
        worker = spawn_worker(self.context, launch.name, self._terms, command)
        member = Member(worker, launch.model, launch, launch.command, checkpoint, extra_grace_s)
        self._take_in(member, Role.STANDBY if launch.standby else Role.ACTIVE)
        return member

    def _take_in(self, member: Member, role: Role) -> None:
        self._router.add(member.worker, member.name, member.model, role)
        self.members[member.name] = member
        member.worker.ref.watch(self._routes)  # first: it is notified of a loss before all others
        if self._models is not None and not member.remote:
            member.worker.ref.watch(self._models, WorkerChanged)
        member.worker.ref.watch(self.context.ref, WorkerChanged)
        # An extra worker belongs to an operation, during which its model stays loaded.
        starts = self._models is None or member.remote or member.extra_grace_s is not None
        if not member.remote:
            self._tell_models(WorkerAdded(member.worker, member.model, starts))
        if starts and not self._stopping:
            member.worker.ref.tell(StartWorker())

    def _remove(self, worker: str) -> None:
        self._router.remove(worker)  # first: it raises if the worker is in use
        member = self.members.pop(worker)
        member.worker.ref.stop()
        if member.remote:
            self._on_removed(worker)
        else:
            self._tell_models(WorkerRemoved(worker))

    def _tell_models(self, message: LoaderMessage) -> None:
        if self._models is not None and self._models.end is None:
            self._models.tell(message)

    def _use(self, member: Member, command: CommandLine, checkpoint: str) -> None:
        """Start a worker in this way from now on."""
        self.members[member.name] = replace(member, command=command, checkpoint=checkpoint)
        if checkpoint != member.checkpoint:
            member.worker.ref.tell(ProgramChanged())

    def _join(self, request: JoinRequest) -> None:
        """Let a remote worker join as the one that its key names, or decline in words and count it."""
        name, hello = request.name, request.hello
        against = objection(self.members, name, hello, self._router.pool.catalog)
        if self._stopping:
            against = Objection(Rejection.TAKEN, "the gateway is shutting down")
        if against is not None:
            _log.warning("worker_declined", worker=name, address=request.address, reason=against.why)
            self._router.rejections.count(against.kind)
            request.decline(against.why)
            return
        if name not in self.members:
            worker = spawn_worker(self.context, name, replace(self._terms, policy=None))
            self._take_in(Member(worker, hello.model), Role.ACTIVE)
        if (other := differs(self.members, name, hello)) is not None:
            _log.warning("worker_unlike", worker=name, other=other, model=hello.model)
        if hello.gateways > 1 and not self._shares:
            self._shares = True
            _log.warning("workers_are_shared", worker=name, gateways=hello.gateways, effect=SHARED)
        request.hand_to(self.members[name].worker.ref)

    def _changed(self, status: WorkerStatus) -> None:
        if status.state is WorkerState.GIVEN_UP:
            left = sum(member.status.state is not WorkerState.GIVEN_UP for member in self.members.values())
            if left or any(each.launch.on_demand for each in self.members.values() if each.launch is not None):
                _log.error("worker_is_out", worker=status.name, left=left, reason=status.reason)
            else:  # the watchers log the reasons
                self.context.notify(msg.FleetGaveUp(self._reasons()))
        if self._on_status is not None:
            self._on_status(status)

    def _reasons(self) -> tuple[str, ...]:
        """The reason of each worker that was given up."""
        return tuple(
            f"worker {member.name}: {member.status.reason}"
            for member in self.members.values()
            if member.status.state is WorkerState.GIVEN_UP
        )

    def _stop(self, ended: ReplyTo[bool]) -> None:
        self._stopping, self._operable = True, False
        self._operating.cancel()
        if self._models is not None:
            self._models.stop()  # first: it would take the end of the workers for that of their models
        for member in self.members.values():
            member.worker.ref.stop()  # needs no room in a mailbox, and has no effect on one that has ended
        self._deferred.add(ended, lambda: None if any(each.status.running for each in self.members.values()) else True)

    # Operations.

    def _begin(self, message: msg.OperationStart) -> None:
        latest = self._latest
        try:
            name, script = self._script(message)
        except KeyError as error:
            message.reply.fail(error)
            return
        if not self._operable:
            message.reply.fail(Busy("the gateway is about to end"))
        elif latest is not None and latest.outcome is OperationOutcome.RUNNING:
            message.reply.fail(Busy(f"{latest.name} is under way"))
        else:
            self._latest = Operation(1 if latest is None else latest.number + 1, name)
            self._operating = operating = anyio.CancelScope()
            steps = Steps(self.members, self.context.ref, self._terms.deadlines, message.grace_s, self._models)
            pinned = self._pinned(message)
            for model in pinned:
                self._tell_models(PinModel(model))
            self.context.start_soon(self._operate, script, steps, operating, pinned)
            message.reply.send(self._latest)

    def _script(self, message: msg.OperationStart) -> tuple[str, Script]:
        """Its name, and what it does. Raises `KeyError` for a worker or a model that there is not."""
        members, pool = self.members, self._router.pool
        match message:
            case msg.ChangeModel(change, model):
                if pool.catalog.find(model) is None:
                    raise KeyError(model)
                return f"{change} of {model}", functools.partial(operations.change_model, change=change, model=model)
            case msg.DrainOne(worker):
                return f"drain {worker}", functools.partial(operations.drain_one, member=members[worker])
            case msg.RemoveRemote(worker):
                return f"remove {worker}", functools.partial(operations.remove_remote, member=members[worker])
            case msg.RestartOne(worker):
                return f"restart {worker}", functools.partial(operations.restart_all, members=[members[worker]])
        if message.model and not pool.of(message.model):
            raise KeyError(message.model)
        whose = message.model or "all"
        if isinstance(message, msg.RestartAll):
            absent = {each.name for each in pool.catalog if each.absent and not message.model}
            wanted = [each for each in members.values() if message.model in ("", each.model)]
            chosen = [each for each in wanted if each.model not in absent]
            return f"restart of {whose}", functools.partial(operations.restart_all, members=chosen)
        models, checkpoint = [message.model] if message.model else pool.models(), message.checkpoint
        name = f"reload {whose} from {checkpoint}" if checkpoint else f"rolling restart of {whose}"
        return name, functools.partial(operations.replace_all, pool=pool, models=models, checkpoint=checkpoint)

    def _pinned(self, message: msg.OperationStart) -> list[str]:
        """The models whose workers an operation is about, which must not be unloaded meanwhile."""
        match message:
            case msg.ChangeModel() | msg.DrainOne() | msg.RemoveRemote():
                return []
            case msg.RestartOne(worker):
                return [self.members[worker].model]
            case _:
                return [message.model] if message.model else self._router.models.names()

    async def _operate(self, script: Script, steps: Steps, operating: anyio.CancelScope, pinned: Sequence[str]) -> None:
        """A task of the fleet. What it does is in its messages, and so is how it ended."""
        with operating:
            outcome, line = OperationOutcome.DONE, ""
            try:
                try:
                    await script(steps)
                finally:
                    await release_extras(steps, self._router.pool)
            except (OperationFailed, LaunchRefused, ModelFailed) as error:
                outcome, line = OperationOutcome.FAILED, str(error)
            except ActorStopped as error:  # its supervision has failed for good, which was logged
                outcome, line = OperationOutcome.FAILED, f"{error}: restart the gateway"
            except Exception as error:  # noqa: BLE001  a bug ends this operation, not the gateway
                _log.error("operation_failed", exc_info=error)
                outcome, line = OperationOutcome.FAILED, f"internal error: {type(error).__name__}: {error}"
            for model in pinned:
                self._tell_models(UnpinModel(model))
            self.context.ref.tell(msg.OperationReport(line, outcome), urgent=True)

    def _report(self, line: str, outcome: OperationOutcome) -> None:
        latest = self._latest
        assert latest is not None, "only operations report"
        if line:
            _log.info("operation", number=latest.number, operation=latest.name, did=line)
        lines = (*latest.lines, line) if line and len(latest.lines) < MAX_LINES else latest.lines
        self._latest = replace(latest, lines=lines, outcome=outcome)

    # What others wait for, until the state of the workers allows an answer.

    def _unserved(self) -> str | None:
        own = [each for each in self.members.values() if each.launch is not None and not each.launch.on_demand]
        if not all(member.status.incarnation and member.status.state in SETTLED for member in own):
            return None
        if {each.model for each in own} == {each.model for each in own if each.status.state is WorkerState.READY}:
            return ""
        return "; ".join(self._reasons()) or "the workers were stopped"

    def _relieved(self, worker: str, by: frozenset[str] | None) -> bool | None:
        """Return whether a worker is a standby now; it changes places with a ready one. None while one may become
        ready."""
        pool, member = self._router.pool, self.members[worker]
        handle = pool[worker]
        if handle.role is Role.STANDBY:
            return True
        standbys = [
            each
            for each in self.members.values()
            if each.model == member.model
            and pool[each.name].role is Role.STANDBY
            and (each.extra_grace_s is None if by is None else each.name in by)
        ]
        ready = [each for each in standbys if pool[each.name].ready]
        if not ready and any(map(_comes, standbys if by is None else [self.members[name] for name in by])):
            return None
        if not ready and (by is not None or member.status.running or not standbys):
            return False
        pool.swap(handle, pool[(ready or standbys)[0].name])
        return True


def _comes(member: Member) -> bool:
    """True if it will become ready. A remote worker that is not connected may never be."""
    return member.status.running and (not member.remote or member.status.pid is not None)
