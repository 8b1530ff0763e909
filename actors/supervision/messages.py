"""Messages to a worker's actor, decisions of its life, and the inputs that follow from them."""

from msgspec import Struct

from actors.actor import ReplyTo
from actors.join.request import JoinRequest
from actors.process.exit_cause import Origin
from actors.supervision.worker import WorkerNotice, WorkerStatus
from protocol.commands import Command

# From those who supervise the worker. A `JoinRequest` is one of these.


class StartWorker(Struct, frozen=True):
    """Keep the worker running, also after it was stopped or given up. A remote one may join from now on."""


class DrainWorker(Struct, frozen=True):
    """Let live sequences finish within `grace_s` seconds, then stop for good. The reply is sent when it has ended."""

    grace_s: float
    move_s: float = 0.0
    """Time after the grace (`GraceEnded`) in which the watchers may move the rest."""
    reply: ReplyTo[WorkerStatus] | None = None


class RestartWorker(Struct, frozen=True):
    """As `DrainWorker`, but another incarnation follows. No effect on a worker that does not run or is to stop."""

    grace_s: float
    move_s: float = 0.0
    reply: ReplyTo[WorkerStatus] | None = None


class StopWorker(Struct, frozen=True):
    """Stop for good: ask, wait for `Deadlines.stop`, kill. A remote one is disconnected."""


class ProgramChanged(Struct, frozen=True):
    """The next incarnations run something else, such as another checkpoint."""


class AwaitReady(Struct, frozen=True):
    """Reply with the status once an incarnation later than `after` is ready, or the worker has ended."""

    after: int
    reply: ReplyTo[WorkerStatus]


# From the worker's own link, process and timer.


class Frames(Struct, frozen=True):
    """A message arrived on the link. A `fault` says why it must be rejected."""

    incarnation: int
    frames: list[bytes]
    fault: str = ""


class LinkLost(Struct, frozen=True):
    """The link has ended."""

    incarnation: int
    reason: str
    origin: Origin
    final: bool
    """No exit of a process is expected to explain it."""


class Exited(Struct, frozen=True):
    """The process has exited unasked. `clean`: with status 0."""

    incarnation: int
    reason: str
    origin: Origin
    clean: bool


class Ended(Struct, frozen=True):
    """Nothing is left of an incarnation that was to end."""

    incarnation: int


class Admit(Struct, frozen=True):
    """Decide on a join request. What had arrived on the current link was handled before."""

    request: JoinRequest


class Due(Struct, frozen=True):
    """The time `Life.due` has come."""


WorkerRequest = StartWorker | DrainWorker | RestartWorker | StopWorker | ProgramChanged | AwaitReady | JoinRequest
WorkerReport = Frames | LinkLost | Exited | Ended | Admit | Due
WorkerMessage = WorkerRequest | WorkerReport


# Decisions of a worker's life. A `WorkerNotice` is for the watchers.


class StartIncarnation(Struct, frozen=True):
    """Start a process, or take over the link of the request: `Started` or a `Loss` follows."""

    number: int
    request: JoinRequest | None


class SendCommand(Struct, frozen=True):
    """Send a command: `NotSent` follows if that fails."""

    command: Command


class CloseLink(Struct, frozen=True):
    """Close the link. The event loop waits up to `linger_s` seconds for the last frames to leave."""

    linger_s: float = 0.0


class EndIncarnation(Struct, frozen=True):
    """Give it `ask_s` seconds to end, then kill it: `Ended` follows."""

    ask_s: float


class DeclineJoin(Struct, frozen=True):
    """Refuse a join request."""

    request: JoinRequest
    why: str


Decision = StartIncarnation | SendCommand | CloseLink | EndIncarnation | DeclineJoin | WorkerNotice


# Results of decisions, which are inputs of the life as well.


class Started(Struct, frozen=True):
    """The incarnation was started."""

    pid: int
    address: str = ""


class NotSent(Struct, frozen=True):
    """A command could not be sent."""

    command: Command


class Observation(Struct, frozen=True):
    """The state of the incarnation at the time `Life.due`."""

    suspended: bool = False
    """A signal has stopped its process."""
    hang_origin: Origin = Origin.UNKNOWN
    """The origin of a hang, if it hangs."""
    dropped: bool = False
    """True if a message broke the link's bounds."""


class Loss(Struct, frozen=True):
    """The end of an incarnation. As an input: its start or its supervision failed."""

    reason: str
    origin: Origin = Origin.WITHIN
    lasting: bool = False
    """Another start would fail in the same way."""
    shortage: bool = False
    """The system is short of something that the start needs, such as memory or descriptors."""
    asked: bool = False
    """True if it left as asked."""


class Abandon(Struct, frozen=True):
    """Give the worker up, whatever is left of its incarnation: nothing will report its end."""

    reason: str


Input = WorkerMessage | Started | NotSent | Observation | Loss | Abandon
