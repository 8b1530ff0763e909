"""HTTP/2 frames that cost the server more than the client: each connection has a budget of them."""

import struct
from collections.abc import Callable

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hpack import Encoder

from tests.attacks.http.client import Http2Client, frame, no_connections
from tests.attacks.server import AttackedServer

DATA, HEADERS, PRIORITY, RST, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
FRAMES = 20_000
AT_ONCE = 50
"""Requests under way on one connection, of the 100 that it may have."""


def head(method: str = "GET", path: str = "/health/live", **more: str) -> bytes:
    """Headers that leave the server's table as it is."""
    fields = {":method": method, ":scheme": "http", ":authority": "localhost", ":path": path} | more
    block: bytes = Encoder().encode([(name, value, True) for name, value in fields.items()])
    return block


def odd(count: int) -> range:
    """Streams of a client."""
    return range(1, 2 * count, 2)


def rapid_reset() -> bytes:
    block = head("POST", "/v1/completions")
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, block) + frame(RST, 0, stream, struct.pack(">I", ErrorCodes.CANCEL))
        for stream in odd(FRAMES // 2)
    )


def made_you_reset_by_a_window() -> bytes:
    """CVE-2025-8671: the server resets each stream, for its window overflows."""
    block, overflow = head("POST", "/v1/completions"), struct.pack(">I", 2**31 - 1)
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, block) + frame(WINDOW, 0, stream, overflow) for stream in odd(FRAMES // 2)
    )


def made_you_reset_by_data() -> bytes:
    """Data for a stream that the client has reset itself."""
    start = frame(HEADERS, END_HEADERS, 1, head("POST", "/nope")) + frame(RST, 0, 1, struct.pack(">I", 8))
    return start + frame(DATA, 0, 1, b"x") * FRAMES


def on_an_open_stream(flood: bytes) -> bytes:
    return (
        frame(HEADERS, END_HEADERS, 1, head("POST", "/v1/completions", **{"content-type": "application/json"})) + flood
    )


def references() -> bytes:
    """A large header that fills the table, and then many headers of one byte that each stand for it."""
    encoder = Encoder()
    first = encoder.encode(
        [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "x"), ("x", "a" * 3900)]
    )
    return frame(HEADERS, END_STREAM | END_HEADERS, 1, first) + b"".join(
        frame(HEADERS, END_STREAM | END_HEADERS, stream, b"\x82\x84\x86" + b"\xbe" * 16000) for stream in (3, 5, 7)
    )


def long_string() -> bytes:
    """Headers of 900 KiB in Huffman code, which takes long to decode."""
    block = b"\x82\x84\x86\x41\x01x\x00\x01x\xff\x80\xf0\x36" + b"\0" * 900_000
    parts = [block[at : at + 16384] for at in range(0, len(block), 16384)]
    frames = [frame(HEADERS if not at else CONTINUATION, 0, 1, part) for at, part in enumerate(parts)]
    return b"".join(frames)


FLOODS: dict[str, Callable[[], bytes]] = {
    "rapid reset": rapid_reset,
    "made you reset, by a window": made_you_reset_by_a_window,
    "made you reset, by data": made_you_reset_by_data,
    "settings": lambda: frame(SETTINGS, 0, 0) * FRAMES,
    "settings of the window": lambda: b"".join(
        frame(SETTINGS, 0, 0, struct.pack(">HI", 4, size)) for size in range(FRAMES)
    ),
    "settings in one frame": lambda: frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1) * 2730) * 100,
    "acknowledged settings": lambda: frame(SETTINGS, 1, 0) * FRAMES,
    "ping": lambda: frame(PING, 0, 0, bytes(8)) * FRAMES,
    "acknowledged ping": lambda: frame(PING, 1, 0, bytes(8)) * FRAMES,
    "priority": lambda: b"".join(frame(PRIORITY, 0, each, struct.pack(">IB", 0, 9)) for each in odd(FRAMES)),
    "priority in a circle": lambda: b"".join(
        frame(PRIORITY, 0, each, struct.pack(">IB", (each + 2) % 2000, 9)) for _ in range(20) for each in odd(500)
    ),
    "window updates": lambda: frame(WINDOW, 0, 0, struct.pack(">I", 1)) * FRAMES,
    "window updates of a stream": lambda: on_an_open_stream(frame(WINDOW, 0, 1, struct.pack(">I", 1)) * FRAMES),
    "empty data": lambda: on_an_open_stream(frame(DATA, 0, 1) * FRAMES),
    "padding alone": lambda: on_an_open_stream(frame(DATA, 8, 1, b"\xff" + bytes(255)) * FRAMES),
    "data of one byte": lambda: on_an_open_stream(frame(DATA, 0, 1, b" ") * 65000),
    "empty continuations": lambda: frame(HEADERS, 0, 1, head()) + frame(CONTINUATION, 0, 1) * FRAMES,
    "large continuations": lambda: frame(HEADERS, 0, 1, head()) + frame(CONTINUATION, 0, 1, bytes(16384)) * 200,
    "a long string in Huffman code": long_string,
    "references to a large header": references,
    "headers of a closed stream": lambda: (
        frame(HEADERS, END_HEADERS, 1, head("POST", "/nope"))
        + frame(RST, 0, 1, struct.pack(">I", 8))
        + frame(HEADERS, END_STREAM | END_HEADERS, 1, head()) * FRAMES
    ),
    "unknown frames": lambda: frame(0xEE, 0, 0) * FRAMES,
    "alternative services": lambda: frame(0xA, 0, 1, b"\0\0") * FRAMES,
    "more streams than granted": lambda: b"".join(frame(HEADERS, END_HEADERS, each, head()) for each in odd(FRAMES)),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_of_frames_ends_its_connection(server: AttackedServer, flood: Callable[[], bytes]) -> None:
    before = server.rss
    with Http2Client(server) as client:
        client.send(flood())
        client.until_closed()
        assert client.goaway != ErrorCodes.NO_ERROR
    no_connections(server)
    assert server.rss < before + 64 * 2**20


def test_many_small_headers_hold_nobody_up(server: AttackedServer) -> None:
    block = head() + b"\x00\x01a\x00" * 1800
    with Http2Client(server) as client:
        client.send(b"".join(frame(HEADERS, END_STREAM | END_HEADERS, stream, block) for stream in odd(20)))
        client.send(frame(PING, 0, 0, bytes(8)))
        client.read()
    no_connections(server)


def test_a_large_header_table_is_not_filled(server: AttackedServer) -> None:
    """The server remembers headers that it has sent, as far as the client allows: here it allows 4 GiB. The client's
    own table mirrors what the server remembers."""
    with Http2Client(server) as client:
        client.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: 2**32 - 1})
        streams = [client.ask("GET", "/health/live", request_id=f"{number:0>100}") for number in range(AT_ONCE)]
        client.until(lambda: client.ended.issuperset(streams))
        remembered = client.h2.decoder.header_table.dynamic_entries
        assert 0 < sum(len(name) + len(value) + 32 for name, value in remembered) <= 4096


def test_a_client_that_cancels_as_people_do_is_served(server: AttackedServer) -> None:
    with Http2Client(server) as client:
        for _ in range(150):
            stream = client.ask("POST", "/v1/completions", b"{", end=False)
            client.h2.reset_stream(stream, ErrorCodes.CANCEL)
        last = client.ask("GET", "/health/live")
        client.until(lambda: last in client.ended)
        assert client.statuses[last] == 200


def test_many_requests_with_a_window_update_each_are_served(server: AttackedServer) -> None:
    """As httpx asks. Without what new streams earn, 2,400 of them would be too many for the budget."""
    with Http2Client(server) as client:
        for _ in range(3000 // AT_ONCE):
            streams = [client.ask("GET", "/health/live") for _ in range(AT_ONCE)]
            for stream in streams:
                client.h2.increment_flow_control_window(2**24, stream)
            client.until(lambda: client.ended.issuperset(streams))  # noqa: B023
        assert client.goaway is None
