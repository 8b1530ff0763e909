"""Messages to the fleet, and the notice that its watchers get."""

from typing import Literal

from msgspec import Struct

from actors.actor import ReplyTo, Terminated
from actors.join.request import JoinRequest
from actors.supervision.local import CommandLine
from actors.supervision.worker import WorkerChanged
from gateway.fleet.launch import WorkerLaunch
from gateway.fleet.member import Member
from gateway.fleet.operation import Operation, OperationOutcome

ModelChange = Literal["load", "unload", "reload"]

# What operators ask for, one at a time. The reply is the operation as it begins, or `Busy`, or `KeyError` for a worker
# or a model that there is not; its progress is asked for with `LatestOperation`.


class DrainOne(Struct, frozen=True):
    """Stop a worker for good; what it has finishes within the grace, or goes to other workers."""

    worker: str
    grace_s: float
    reply: ReplyTo[Operation]


class RemoveRemote(Struct, frozen=True):
    """Drain a worker of another machine, forget it, and let it join no more."""

    worker: str
    grace_s: float
    reply: ReplyTo[Operation]


class RestartOne(Struct, frozen=True):
    """Let a worker start again, in its place: also one that was stopped or given up."""

    worker: str
    grace_s: float
    reply: ReplyTo[Operation]


class RestartAll(Struct, frozen=True):
    """Restart all workers of a model (of all models, if it is empty), one after the other."""

    model: str
    grace_s: float
    reply: ReplyTo[Operation]


class ReplaceAll(Struct, frozen=True):
    """Replace all workers of a model, or of all, without losing capacity; by ones with another `checkpoint`, if one is
    given."""

    model: str
    grace_s: float
    checkpoint: str
    reply: ReplyTo[Operation]


class ChangeModel(Struct, frozen=True):
    """Load, unload or reload a model. Its streams end first, within the grace, or it stays as it is."""

    change: ModelChange
    model: str
    grace_s: float
    reply: ReplyTo[Operation]


class LatestOperation(Struct, frozen=True):
    """Ask for the latest operation, running or ended."""

    reply: ReplyTo[Operation | None]


# What the gateway asks for as it starts and ends.


class AwaitSettled(Struct, frozen=True):
    """Ask, once every worker that this gateway starts is as ready as it will be, why not all models are served; empty
    when they are."""

    reply: ReplyTo[str]


class EndOperations(Struct, frozen=True):
    """Cancel the operation that is under way, and begin none any more."""


class StopAll(Struct, frozen=True):
    """Stop every worker for good; the reply is sent when all have ended. None starts any more."""

    reply: ReplyTo[bool]


# What an operation asks for and reports as it goes.


class AddExtra(Struct, frozen=True):
    """Start another worker, which stands by, for the time of the operation."""

    launch: WorkerLaunch
    checkpoint: str
    grace_s: float
    reply: ReplyTo[Member]


class RemoveWorker(Struct, frozen=True):
    """Forget a worker that has ended, and stands by or was remote."""

    worker: str


class UseCommand(Struct, frozen=True):
    """Start the next incarnations of a worker in this way, to serve this checkpoint."""

    worker: str
    command: CommandLine
    checkpoint: str


class Relieve(Struct, frozen=True):
    """Let one of these workers (of all standbys that are no extra ones, if it is None) take the place of that one, as
    soon as one stands by and is ready. The reply is false when none is, and none will be."""

    worker: str
    by: frozenset[str] | None
    reply: ReplyTo[bool]


class OperationReport(Struct, frozen=True):
    """A line of the operation's report, or its outcome."""

    line: str = ""
    outcome: OperationOutcome = OperationOutcome.RUNNING


OperationStart = DrainOne | RemoveRemote | RestartOne | RestartAll | ReplaceAll | ChangeModel
GatewayRequest = AwaitSettled | EndOperations | StopAll | JoinRequest
OperationRequest = AddExtra | RemoveWorker | UseCommand | Relieve | OperationReport
FleetMessage = OperationStart | LatestOperation | GatewayRequest | OperationRequest | WorkerChanged | Terminated


class FleetGaveUp(Struct, frozen=True):
    """Notifies the fleet's watchers that every worker was given up: nothing is left to serve with."""

    reasons: tuple[str, ...]
