"""A connection to the private socket of a gateway whose place is to be taken."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self

import anyio
from anyio.abc import SocketAttribute, UNIXSocketStream

from actors.transport.endpoint import is_of_this_user, is_private
from gateway.fleet.succession import (
    MAX_LINE_BYTES,
    InvalidStep,
    PredecessorReply,
    SuccessorStep,
    decode_reply,
    encode_line,
)

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class NoAnswer(Exception):
    """Raised when the gateway gives no valid answer, or refuses; the text says why."""


class PredecessorConnection:
    """Asks a gateway of this user, over one connection. It stays open from the socket's transfer to the end of the
    take-over, because the gateway leaves only for the process that has the socket."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self._stream = stream
        self.pid = 0
        """The gateway's process, as it says."""

    @classmethod
    async def open(cls, path: Path) -> Self | None:
        """Connect; None if no process of this user listens there."""
        try:
            stream = await anyio.connect_unix(path)
        except OSError:
            return None
        if is_of_this_user(stream.extra(SocketAttribute.raw_socket)):
            return cls(stream)
        await stream.aclose()
        return None

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    async def take_unix(self, path: str, within_s: float) -> int:
        """Receive the Unix socket that listens on this path, a descriptor that the caller owns. Raises `NoAnswer`."""
        return (await self._receive("take_unix", path, within_s))[1]

    async def ask(self, step: Literal["check", "leave"], within_s: float) -> PredecessorReply:
        """Send a step and return the reply. Raises `NoAnswer`."""
        with _errors():
            with anyio.fail_after(within_s):
                await self._stream.send(encode_line(SuccessorStep(step)))
                line = b""
                while not line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES:
                    line += await self._stream.receive(MAX_LINE_BYTES)
            return decode_reply(line)

    async def take(self, within_s: float) -> tuple[PredecessorReply, int]:
        """Receive the listening socket, a descriptor that the caller owns. Raises `NoAnswer`."""
        reply, descriptor = await self._receive("take", "", within_s)
        if not is_private(Path(reply.http)):
            os.close(descriptor)
            raise NoAnswer("it did not send its socket")
        return reply, descriptor

    async def _receive(
        self, step: Literal["take", "take_unix"], path: str, within_s: float
    ) -> tuple[PredecessorReply, int]:
        """`path`: of a Unix socket; empty for the one that the reply names. Raises `NoAnswer`."""
        with _errors():
            with anyio.fail_after(within_s):
                await self._stream.send(encode_line(SuccessorStep(step)))
                line, descriptors = await self._stream.receive_fds(MAX_LINE_BYTES, 1)
            try:
                reply = decode_reply(line)
                if reply.problem:
                    raise NoAnswer(reply.problem)
                place = path or reply.port or reply.unix
                if not descriptors or not _listens_on(descriptors[0], place):
                    raise NoAnswer("it did not send its socket")
            except (InvalidStep, NoAnswer, OSError):
                for each in descriptors:
                    os.close(each)
                raise
            os.set_inheritable(descriptors[0], False)  # CPython's recvmsg does not set MSG_CMSG_CLOEXEC
            return reply, descriptors[0]


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise NoAnswer("it does not answer") from error
    except (OSError, InvalidStep, anyio.EndOfStream, anyio.BrokenResourceError) as error:
        raise NoAnswer(str(error) or "it closed the connection") from error


def _listens_on(descriptor: int, place: int | str) -> bool:
    """Return whether it is a listening socket on this port or path. Raises `OSError` if it is no socket."""
    shared = socket.socket(fileno=descriptor)
    try:
        name = shared.getsockname()
        found = name if shared.family == socket.AF_UNIX else name[1]
        return bool(shared.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) and found == place
    finally:
        shared.detach()


async def reachable_as(host: str) -> set[str]:
    """Return the addresses of a gateway that is in the way of one on `host`."""
    local = _WILDCARDS.get(host, host)
    family = socket.AF_INET6 if ":" in local else socket.AF_INET
    try:
        found = await anyio.getaddrinfo(local, None, family=family, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    resolved = {str(address[0]) for *_, address in found}
    return {host, local, *resolved, "0.0.0.0", "::"}
