"""Messages between a gateway and the one that takes its place, on a private Unix socket: one JSON object on each line.

The successor asks `check` at any time, then `take` for the listening socket, maybe `take_unix` for the Unix socket that
is served beside a port, and `leave` on the same connection once it accepts from them.
"""

from typing import Literal

import msgspec
from msgspec import Struct

MAX_LINE_BYTES = 4096


class InvalidStep(Exception):
    """Raised for a line that is not one of these messages."""


class SuccessorStep(Struct, frozen=True, forbid_unknown_fields=True):
    """The request of the successor."""

    step: Literal["check", "take", "take_unix", "leave"]


class PredecessorReply(Struct, frozen=True):
    """The answer of the gateway that has the port. A reply to `take` carries the listening socket as a descriptor, with
    the connections that wait in its queue: none is ever refused."""

    pid: int
    host: str
    """The address of its listening socket; empty for a Unix socket."""
    port: int
    """0 for a Unix socket."""
    unix: str = ""
    """The path of the Unix socket that it serves, if it does."""
    http: str = ""
    """The path of another private Unix socket, with the gateway's HTTP interface: for the streams that it keeps for
    clients which come back. In the reply to `take`."""
    problem: str = ""
    """Why it does not do what it was asked to; empty if it does."""


def purpose_of(port: int) -> str:
    """The purpose of the private socket of the gateway on this port: see `LocalEndpoint`."""
    return f"gateway-{port}"


def encode_line(message: SuccessorStep | PredecessorReply) -> bytes:
    """Encode a message as a line."""
    return msgspec.json.encode(message) + b"\n"


def decode_step(line: bytes) -> SuccessorStep:
    """Raises `InvalidStep`."""
    try:
        return msgspec.json.decode(line, type=SuccessorStep)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidStep(f"it sent an invalid message: {error}") from error


def decode_reply(line: bytes) -> PredecessorReply:
    """Raises `InvalidStep`."""
    try:
        return msgspec.json.decode(line, type=PredecessorReply)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidStep(f"it sent an invalid message: {error}") from error
