"""Messages to the actor that loads models."""

from msgspec import Struct

from actors.actor import ReplyTo, Terminated
from actors.supervision.worker import WorkerChanged
from actors.supervision.worker_actor import WorkerRef
from gateway.models.terms import ModelTerms


class ModelFailed(Exception):
    """The answer to a request to load or to unload a model which cannot be followed. The text says why."""


class ModelStays(ModelFailed):
    """The answer to a request to unload a model whose streams have not ended in time."""


# From the fleet.


class WorkerAdded(Struct, frozen=True):
    """A worker of this machine, which runs only while its model is loaded. One that is `started` runs already."""

    worker: WorkerRef
    model: str
    started: bool = False


class WorkerRemoved(Struct, frozen=True):
    """The fleet has forgotten a worker."""

    worker: str


class WorkerDrained(Struct, frozen=True):
    """Somebody has stopped a worker, maybe while its model was not loaded: do not start it with its model."""

    worker: str


class StartOne(Struct, frozen=True):
    """Start a worker that somebody has stopped, or that was given up, and load its model if it is not loaded. The reply
    is sent when the worker runs. `ModelFailed` if it cannot."""

    worker: str
    reply: ReplyTo[bool]


class PinModel(Struct, frozen=True):
    """Do not unload a model until `UnpinModel`."""

    model: str


class UnpinModel(Struct, frozen=True):
    """End that."""

    model: str


class ReserveMemory(Struct, frozen=True):
    """Take memory for one more worker of a pinned model, until the pin ends. The reply is false if there is none."""

    model: str
    reply: ReplyTo[bool]


# From operators and clients.


class LoadModel(Struct, frozen=True):
    """Load a model. The reply is sent when a worker is ready. `KeyError` for a model that this server does not have,
    `ModelFailed` for one that cannot be loaded."""

    model: str
    reply: ReplyTo[bool]


class UnloadModel(Struct, frozen=True):
    """Unload a model when its streams have ended; new requests wait, and load it again. The reply is sent when nothing
    is left of its workers. `KeyError` likewise, and `ModelFailed` after `KeepModel`."""

    model: str
    reply: ReplyTo[bool]


class ReloadModel(Struct, frozen=True):
    """Unload a model likewise, and load it again. The reply is that of `LoadModel`."""

    model: str
    reply: ReplyTo[bool]


class KeepModel(Struct, frozen=True):
    """Take an unload back that waits for streams to end."""

    model: str


class KeepAlive(Struct, frozen=True):
    """Unload a model after so many seconds without a request, until it is loaded the next time."""

    model: str
    seconds: float


# From itself.


class ModelPrepared(Struct, frozen=True):
    """A model can be loaded, on these terms."""

    terms: ModelTerms


class ModelNotPrepared(Struct, frozen=True):
    """A model could not be prepared."""

    model: str
    reason: str


class ActivityChanged(Struct, frozen=True):
    """Requests have begun or ceased to wait, or a model has become idle."""


class TimeCame(Struct, frozen=True):
    """The time of the next decision has come."""


LoaderMessage = (
    WorkerAdded
    | WorkerRemoved
    | WorkerDrained
    | StartOne
    | PinModel
    | UnpinModel
    | ReserveMemory
    | LoadModel
    | UnloadModel
    | ReloadModel
    | KeepModel
    | KeepAlive
    | ModelPrepared
    | ModelNotPrepared
    | ActivityChanged
    | TimeCame
    | WorkerChanged
    | Terminated
)
