"""What the gateway tells a worker: a closed union, decoded by `protocol.codec.decode_command`."""

from msgspec import Struct

from protocol.bounds import Label, Milliseconds, Name, Reason, StreamId, Tokens
from protocol.request import Input, Limits, Sampling


class Welcome(Struct, frozen=True, array_like=True, tag="welcome", omit_defaults=True, gc=False):
    """The answer to `Hello`. An empty `refusal` admits the worker; otherwise it says why the worker must leave."""

    incarnation: StreamId
    refusal: Reason = ""


class Submit(Struct, frozen=True, array_like=True, tag="submit", omit_defaults=True):
    """Start one sequence. Carries everything that a fresh worker needs, so that it can be sent again elsewhere."""

    stream: StreamId
    """The gateway's number for this sequence; every event about it carries the same."""
    request: Name
    """The public request id, for logs."""
    input: Input
    sampling: Sampling
    limits: Limits
    resume: Tokens = ()
    """Tokens already delivered to the client: generation goes on after them, and they count as generated."""
    tenant: Label = ""
    """Whose request it is; prefixes are never shared between tenants."""


class Cancel(Struct, frozen=True, array_like=True, tag="cancel", gc=False):
    """End a sequence now. An unknown or ended one is ignored: the race is ordinary."""

    stream: StreamId


class Drain(Struct, frozen=True, array_like=True, tag="drain", gc=False):
    """Admit nothing more, finish what is live, then say `Bye`. What is live after the grace is failed."""

    grace_ms: Milliseconds


class Stop(Struct, frozen=True, array_like=True, tag="stop", gc=False):
    """Fail what is live with `DRAINING`, say `Bye` and exit."""


Command = Welcome | Submit | Cancel | Drain | Stop
