"""The values of a worker's supervision: what its mailbox takes, what its life decides, and what follows from that."""

from msgspec import Struct

from actors.actor import ReplyTo
from actors.join.request import JoinRequest
from actors.process.exit_cause import Origin
from actors.supervision.worker import WorkerNotice, WorkerStatus
from protocol.commands import Command

# From those who supervise the worker. A `JoinRequest` is one of these.


class StartWorker(Struct, frozen=True):
    """Keep the worker alive: also again, after it was stopped or given up. A remote one may join from now on."""


class DrainWorker(Struct, frozen=True):
    """Let what is live finish within `grace_s` seconds, then stop for good. The reply is sent when it has ended."""

    grace_s: float
    move_s: float = 0.0
    """Time after the grace (`GraceEnded`) in which the watchers may take away what it still has."""
    reply: ReplyTo[WorkerStatus] | None = None


class RestartWorker(Struct, frozen=True):
    """As `DrainWorker`, but another incarnation follows: the reply is sent when this one has ended. No effect on a
    worker that is not running, or is to stop for good."""

    grace_s: float
    move_s: float = 0.0
    reply: ReplyTo[WorkerStatus] | None = None


class StopWorker(Struct, frozen=True):
    """Stop for good: ask, wait for `Deadlines.stop`, then kill. A remote one is disconnected."""


class AwaitReady(Struct, frozen=True):
    """Ask for the status once an incarnation later than `after` takes requests, or the worker has ended."""

    after: int
    reply: ReplyTo[WorkerStatus]


class Exempt(Struct, frozen=True):
    """Do not count the end of this incarnation against the worker."""

    incarnation: int


# From the worker's own link, process and timer.


class Frames(Struct, frozen=True):
    """A message arrived on the link. `fault` is why nothing of it may be taken."""

    incarnation: int
    frames: list[bytes]
    fault: str = ""


class LinkLost(Struct, frozen=True):
    """The link has ended; `origin` is who ended it, as far as the link alone tells."""

    incarnation: int
    reason: str
    origin: Origin
    final: bool
    """No exit of a process can explain it."""


class Exited(Struct, frozen=True):
    """The process has exited, and not because it was made to. `clean`: with status 0."""

    incarnation: int
    reason: str
    origin: Origin
    clean: bool


class Ended(Struct, frozen=True):
    """An incarnation that was to end is gone."""

    incarnation: int


class Admit(Struct, frozen=True):
    """Decide on a join request: what had arrived on the present link before it was handled."""

    request: JoinRequest


class Due(Struct, frozen=True):
    """The time has come that the worker waited for."""


WorkerRequest = StartWorker | DrainWorker | RestartWorker | StopWorker | AwaitReady | Exempt | JoinRequest
WorkerReport = Frames | LinkLost | Exited | Ended | Admit | Due
WorkerMessage = WorkerRequest | WorkerReport


# What the life of a worker decides. A `WorkerNotice` is for the watchers.


class StartIncarnation(Struct, frozen=True):
    """Start a process, or take over the link of the request: `Started` or a `Loss` follows."""

    number: int
    request: JoinRequest | None


class SendCommand(Struct, frozen=True):
    """Send a command: `NotSent` follows when that is impossible."""

    command: Command


class CloseLink(Struct, frozen=True):
    """Close the link. What was sent last may take `linger_s` seconds to leave, for which the event loop waits."""

    linger_s: float = 0.0


class EndIncarnation(Struct, frozen=True):
    """Give it `ask_s` seconds to end by itself, then end it by force: `Ended` follows."""

    ask_s: float


class DeclineJoin(Struct, frozen=True):
    """Refuse a join request."""

    request: JoinRequest
    why: str


Decision = StartIncarnation | SendCommand | CloseLink | EndIncarnation | DeclineJoin | WorkerNotice


# What it learns, beside messages of the mailbox.


class Started(Struct, frozen=True):
    """The incarnation was started."""

    pid: int
    address: str = ""


class NotSent(Struct, frozen=True):
    """A command could not be sent."""

    command: Command


class Observation(Struct, frozen=True):
    """What can be seen of the incarnation when the life is due: a signal has stopped its process, who would be to blame
    if it hung, and whether it has sent a message that breaks the link's bounds."""

    suspended: bool = False
    hang_origin: Origin = Origin.UNKNOWN
    dropped: bool = False


class Loss(Struct, frozen=True):
    """How an incarnation ended. As an input: it could not be started, or its supervision failed."""

    reason: str
    origin: Origin = Origin.WITHIN
    lasting: bool = False
    """Another start would end in the same way."""
    shortage: bool = False
    """It could not be started, for want of something that the system may have again soon."""
    asked: bool = False
    """It left because it was asked to."""


Input = WorkerMessage | Started | NotSent | Observation | Loss
