"""The types of answers about the gateway itself, for the document."""

from typing import Any, Literal

from msgspec import Struct

from gateway.keys.record import KeyLimits
from gateway.metrics.key_collector import KeyUse
from gateway.routing.model_catalog import ModelState
from gateway.routing.model_description import ModelDescription


class Live(Struct, forbid_unknown_fields=True):
    """The event loop runs."""

    status: Literal["live"]


class Readiness(Struct, forbid_unknown_fields=True):
    """Readiness to admit requests: for each model, whether a worker of it makes progress, and its state."""

    status: Literal["ready", "not ready", "draining"]
    models: dict[str, bool]
    states: dict[str, ModelState]
    given_up: list[str]
    """Workers that are not restarted."""


class Health(Struct, forbid_unknown_fields=True):
    """Readiness to admit requests."""

    status: Literal["ready", "not ready", "draining"]


class Version(Struct, forbid_unknown_fields=True):
    """The version of Baton."""

    version: str


class Workers(Struct, forbid_unknown_fields=True):
    """The state of every worker."""

    workers: list[dict[str, Any]]


class ModelEntries(Struct, forbid_unknown_fields=True):
    """The models of the server."""

    models: list[ModelDescription]


class OperationState(Struct, forbid_unknown_fields=True):
    """A drain, restart or reload, with its progress so far."""

    number: int
    name: str
    outcome: str
    lines: list[str]


class OperationAnswer(Struct, forbid_unknown_fields=True):
    """The latest operation, or the one that was started."""

    operation: OperationState | None


class GatewayProcess(Struct, forbid_unknown_fields=True):
    """The process of this gateway."""

    pid: int


class KilledWorker(Struct, forbid_unknown_fields=True):
    """The process that was killed."""

    worker: str
    incarnation: int
    pid: int


class JoinTokenAnswer(Struct, forbid_unknown_fields=True):
    """A join token, and the public key of the gateway that it is for."""

    worker: str
    token: str
    valid_s: float
    server_key: str


class TlsAnswer(Struct, forbid_unknown_fields=True):
    """The certificate was read again. The warning is empty, or says why clients will refuse it."""

    warning: str


class KeyEntry(Struct, forbid_unknown_fields=True):
    """One API key, or those of one name."""

    name: str
    limits: KeyLimits
    use: KeyUse


class KeyUses(Struct, forbid_unknown_fields=True):
    """The API keys of clients, with their use since the gateway started."""

    keys: list[KeyEntry]


class KeyNames(Struct, forbid_unknown_fields=True):
    """The names of the API keys, and of those that were added and removed."""

    names: list[str]
    added: list[str]
    removed: list[str]


class KeysAnswer(Struct, forbid_unknown_fields=True):
    """The API keys after their file was read again."""

    keys: KeyNames
