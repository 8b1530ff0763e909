"""Clients that send bytes."""

import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from tests.attacks.server import AttackedServer

STREAM = json.dumps({"model": "scripted", "prompt": "hi", "max_tokens": 1 << 20, "stream": True, "ignore_eos": True})
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def until(true: Callable[[], bool]) -> None:
    """Wait for a condition; the test's time limit ends a wait in vain."""
    while not true():
        time.sleep(0.02)


def no_connections(server: AttackedServer) -> None:
    """Wait until the server holds no connection."""
    until(lambda: server.connections == 0)


def read_all(connection: socket.socket) -> bytes:
    """All that the server sends until it ends the connection."""
    got = bytearray()
    try:
        while part := connection.recv(65536):
            got += part
    except ConnectionError:
        pass  # a reset ends it as well
    return bytes(got)


def send_all(connection: socket.socket, data: bytes) -> None:
    """Send, to a server that may end the connection meanwhile."""
    try:
        connection.sendall(data)
    except OSError:
        pass  # the test sees it when it reads


class Answer(NamedTuple):
    """An HTTP/1.1 response, and what came after it."""

    status: int
    headers: dict[str, str]
    body: bytes
    rest: bytes


def parse(response: bytes) -> Answer:
    """The first of several HTTP/1.1 responses that have a length."""
    head, _, rest = response.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", 0))
    return Answer(int(first.split()[1]), headers, rest[:length], rest[length:])


def read_answer(connection: socket.socket) -> Answer:
    """One response that has a length, from a connection that stays open."""
    got = b""
    while b"\r\n\r\n" not in got or len((answer := parse(got)).body) < int(answer.headers.get("content-length", 0)):
        part = connection.recv(65536)
        assert part, got
        got += part
    return answer


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


class Http2Client:
    """A client that sends any frame, and reads what it is sent."""

    def __init__(
        self, server: AttackedServer, settings: dict[SettingCodes, int] | None = None, timeout_s: float = 30.0
    ) -> None:
        self.socket = server.connect(timeout_s)
        self.h2 = H2Connection(H2Configuration(header_encoding="latin-1", validate_outbound_headers=False))
        self.h2.local_settings = Settings(initial_values={SettingCodes.ENABLE_PUSH: 0, **(settings or {})})
        self.h2.initiate_connection()
        self.statuses: dict[int, int] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.goaway: int | None = None
        """The error code of the server's GOAWAY."""
        self.closed = False
        self.flush()

    def __enter__(self) -> "Http2Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        """Send what the state machine has made."""
        send_all(self.socket, self.h2.data_to_send())

    def send(self, data: bytes) -> None:
        """Send bytes past the state machine."""
        self.flush()
        send_all(self.socket, data)

    def ask(self, method: str, path: str, body: bytes = b"", *, end: bool = True, request_id: str = "") -> int:
        """Send a request. Returns its stream."""
        stream: int = self.h2.get_next_available_stream_id()
        head = [(":method", method), (":scheme", "http"), (":authority", "localhost"), (":path", path)]
        head += [("content-type", "application/json"), ("x-request-id", request_id)]
        self.h2.send_headers(stream, head, end_stream=end and not body)
        if body:
            self.h2.send_data(stream, body, end_stream=end)
        self.flush()
        return stream

    def read(self, take: bool = True) -> None:
        """Read once. Without `take`, no window is opened for what has come."""
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self.closed = True
            return
        try:
            events = self.h2.receive_data(data)
        except ProtocolError:
            return  # a frame for a stream that the test has reset past the state machine
        for event in events:
            self._note(event, take)
        if not self.goaway:
            self.flush()

    def _note(self, event: Event, take: bool) -> None:
        match event:
            case ResponseReceived():
                self.statuses[event.stream_id] = int(dict[Any, Any](event.headers)[":status"])
            case DataReceived():
                self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                if take:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded():
                self.ended.add(event.stream_id)
            case StreamReset():
                self.resets[event.stream_id] = int(event.error_code or 0)
            case ConnectionTerminated():
                self.goaway = int(event.error_code or 0)

    def until(self, true: Callable[[], bool], take: bool = True) -> None:
        """Read until something holds, or the server ends the connection."""
        while not true() and not self.closed:
            self.read(take)
        assert true(), (self.goaway, self.statuses, self.resets)

    def until_closed(self) -> None:
        """Read until the server ends the connection."""
        while not self.closed:
            self.read()
