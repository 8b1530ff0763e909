"""Frames between the gateway and a front, a process that serves HTTP for it. A message of their link is a list of them.

Both ends are of the same installation, so these frames have no versions. A front is trusted as the gateway is.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

PART_BYTES = 64 * 1024
"""Maximum bytes of a body in one frame."""
RESPONSE_WINDOW = 64 * 1024
"""Bytes of one response that a front may hold, which its connection has not taken, before the gateway sends no more of
it. It may hold one part more."""
BODY_WINDOW = 256 * 1024
"""Bytes of one request's body that a front sends before the app has read them. It may send one part more."""

Header = tuple[bytes, bytes]
Address = tuple[str, int]


class ExchangeOpened(Struct, frozen=True, array_like=True, tag="o"):
    """A request's head has arrived. Its body follows in `BodyPart`."""

    exchange: int
    """The number of the request and its response, which the front never uses again."""
    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[Header]
    http_version: str
    scheme: str
    client: Address | None
    server: Address | None
    spare: bool
    """It came on a connection beyond `max_connections`."""


class BodyPart(Struct, frozen=True, array_like=True, tag="b"):
    """A part of a request's body."""

    exchange: int
    body: bytes
    more: bool


class ClientLeft(Struct, frozen=True, array_like=True, tag="l"):
    """The client of an exchange has left, or the front has ended the exchange: nothing can be sent to it any more."""

    exchange: int


class ResponseTaken(Struct, frozen=True, array_like=True, tag="t"):
    """The connection has taken so many further bytes of a response."""

    exchange: int
    count: int


class ResponseDelivered(Struct, frozen=True, array_like=True, tag="d"):
    """The connection has taken the last byte of a response."""

    exchange: int


class InvalidHttpRefused(Struct, frozen=True, array_like=True, tag="r"):
    """The front has answered what is no valid HTTP request."""

    request_id: str
    status: int
    code: str


class FrontReady(Struct, frozen=True, array_like=True, tag="h"):
    """The front accepts connections. Its first frame."""


class FrontPulse(Struct, frozen=True, array_like=True, tag="p"):
    """The state of a front, at intervals."""

    connections: int
    """That are open."""
    stopped: bool
    """It accepts no more of them."""
    refused: int
    """Connections that it has rejected, since its start."""
    lag_s: float
    """The longest lag of its event loop in the last minute."""
    cpu_s: float
    """Processor time that it has used, since its start."""
    memory_bytes: int
    """Its resident memory."""


class CertificateRead(Struct, frozen=True, array_like=True, tag="c"):
    """The reply to `ReadCertificate`."""

    number: int
    problem: str
    """Why the certificate is as before; empty if it is replaced."""


ToGateway = (
    ExchangeOpened
    | BodyPart
    | ClientLeft
    | ResponseTaken
    | ResponseDelivered
    | InvalidHttpRefused
    | FrontReady
    | FrontPulse
    | CertificateRead
)


class ResponseStarted(Struct, frozen=True, array_like=True, tag="s"):
    """The status and the headers of a response."""

    exchange: int
    status: int
    headers: list[Header]


class ResponsePart(Struct, frozen=True, array_like=True, tag="p"):
    """A part of a response's body."""

    exchange: int
    body: bytes
    more: bool


class ExchangeEnded(Struct, frozen=True, array_like=True, tag="e"):
    """The app has ended, and the connection has not taken the whole response."""

    exchange: int


class BodyTaken(Struct, frozen=True, array_like=True, tag="b"):
    """The app has read so many further bytes of a body."""

    exchange: int
    count: int


class RetireConnections(Struct, frozen=True, array_like=True, tag="r"):
    """See `Listener.retire`."""

    within_s: float | None = None


class StopAccepting(Struct, frozen=True, array_like=True, tag="a"):
    """See `Listener.stop`."""


class LeaveFront(Struct, frozen=True, array_like=True, tag="l"):
    """End once the connections are done, within so many seconds."""

    grace_s: float


class ReadCertificate(Struct, frozen=True, array_like=True, tag="c"):
    """Read the files of the certificate again, and reply with `CertificateRead`."""

    number: int


ToFront = (
    ResponseStarted
    | ResponsePart
    | ExchangeEnded
    | BodyTaken
    | RetireConnections
    | StopAccepting
    | LeaveFront
    | ReadCertificate
)

_encoder = msgspec.msgpack.Encoder()
_to_gateway: msgspec.msgpack.Decoder[list[ToGateway]] = msgspec.msgpack.Decoder(list[ToGateway])
_to_front: msgspec.msgpack.Decoder[list[ToFront]] = msgspec.msgpack.Decoder(list[ToFront])


def encode_frames(frames: Sequence[ToGateway | ToFront]) -> bytes:
    """Encode the frames of one message."""
    return _encoder.encode(frames)


def decode_to_gateway(message: bytes) -> list[ToGateway]:
    """Decode a message of a front. Raises `msgspec.DecodeError`."""
    return _to_gateway.decode(message)


def decode_to_front(message: bytes) -> list[ToFront]:
    """Decode a message of the gateway. Raises `msgspec.DecodeError`."""
    return _to_front.decode(message)
