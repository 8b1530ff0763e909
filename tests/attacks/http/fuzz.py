"""Byte streams for the fuzz test: valid HTTP/1.1 requests and HTTP/2 frames, changed at random. Pure, by a seed.

`python -m tests.attacks.http.fuzz COUNT [SEED]` runs COUNT of them against a server of its own, and reports.
"""

import random
import re
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hpack import Encoder

from bench.harness.loop_watchdog import LongestTurn
from tests.attacks.http.client import PREFACE, frame, read_all, send_all
from tests.attacks.server import AttackedServer, attacked_server

BODY = b'{"model": "scripted", "prompt": "hi", "max_tokens": 4}'
METHODS = ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "PRI", "get", ""]
TARGETS = ["/health/live", "/v1/models", "/v1/completions", "/nope", "/", "*", "http://a/v1/models", "/%00%ff", "a:1"]
VERSIONS = ["HTTP/1.1"] * 8 + ["HTTP/1.0", "HTTP/2.0", "HTTP/1.2", "HTTX/1.1", ""]
LINES = [
    "Content-Length: 5",
    "Content-Length: 54",
    "Content-Length: -1",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: chunked, identity",
    "Connection: close",
    "Connection: keep-alive, Upgrade",
    "Upgrade: h2c",
    "Upgrade: websocket",
    "Expect: 100-continue",
    "Content-Type: application/json",
    "X: " + "a" * 3000,
    " folded",
    "Host: b",
    "\0",
    ": empty",
]
BODIES = [
    b"",
    BODY,
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5;a=b\r\nhello\r\n0\r\nT: x\r\n\r\n",
    b"fffffffffffffffff\r\n",
    b"5\r\nhel",
]
INTERESTING = [b"\0", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b":", b" ", b"\xff", b"\x80" * 9, b"HTTP/1.1", PREFACE]
TYPED = re.compile(rb"HTTP/1\.1 50[15] [^\r]*\r\ncontent-type: application/json\r\n")
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def http1_stream(chance: random.Random) -> bytes:
    """One to four requests."""
    return b"".join(_request(chance) for _ in range(chance.randint(1, 4)))


def _request(chance: random.Random) -> bytes:
    lines = [" ".join((chance.choice(METHODS), chance.choice(TARGETS), chance.choice(VERSIONS)))]
    if chance.random() < 0.9:
        lines.append("Host: localhost")
    lines += chance.sample(LINES, chance.randint(0, 4))
    end = "\n" if chance.random() < 0.03 else "\r\n"
    return end.join([*lines, "", ""]).encode("latin-1") + chance.choice(BODIES)


def http2_stream(chance: random.Random) -> bytes:
    """A preface, mostly, and up to 30 frames."""
    start = PREFACE if chance.random() < 0.97 else b""
    start += frame(4, 0, 0) if chance.random() < 0.95 else b""
    encoder, last = Encoder(), -1
    parts = [start]
    for _ in range(chance.randint(1, 30)):
        if chance.random() < 0.4:
            last += 2
            parts.append(frame(1, chance.choice([4, 5, 5, 5, 0, 0x2D]), max(last, 1), _head(chance, encoder)))
        else:
            parts.append(_frame(chance, max(last, 1)))
    return b"".join(parts)


def _head(chance: random.Random, encoder: Encoder) -> bytes:
    fields = [
        (":method", chance.choice(METHODS)),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", chance.choice(TARGETS)),
        ("content-type", "application/json"),
    ]
    if chance.random() < 0.2:
        del fields[chance.randrange(len(fields))]
    if chance.random() < 0.2:
        extra = [
            ("te", "x"),
            ("Upper", "x"),
            ("connection", "close"),
            (":protocol", "websocket"),
            ("host", "b"),
            ("", ""),
        ]
        fields.append(chance.choice([*extra, ("content-length", "5"), ("x", "a\r\nb")]))
    block: bytes = encoder.encode(fields)
    return block


def _frame(chance: random.Random, last: int) -> bytes:
    stream = chance.choice([0, 1, last, last, last, last + 2, 2, 2**31 - 1])
    numbers = [0, 1, 65535, 2**31 - 1, 2**32 - 1, chance.getrandbits(32)]
    payload = {
        0: chance.choice([BODY, b"", b"\xff" * 20, bytes(16384)]),
        1: chance.randbytes(20),
        2: struct.pack(">IB", chance.choice(numbers), 1),
        3: struct.pack(">I", chance.choice(numbers)),
        4: struct.pack(">HI", chance.randint(0, 9), chance.choice(numbers)),
        6: bytes(8),
        7: struct.pack(">II", chance.choice(numbers), 0),
        8: struct.pack(">I", chance.choice(numbers)),
        9: chance.randbytes(5),
    }
    kind = chance.choice([*payload, 5, 10, 0x10, 0xEE])
    return frame(kind, chance.choice([0, 0, 1, 1, 4, 5, 8, 0xFF]), stream, payload.get(kind, chance.randbytes(7)))


def mutated(chance: random.Random, data: bytes) -> bytes:
    """Up to five changes."""
    made = bytearray(data)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 5])):
        at = chance.randrange(len(made) + 1)
        match chance.randrange(5):
            case 0:
                made[at : at + 1] = bytes([chance.getrandbits(8)])
            case 1:
                del made[at : at + chance.randint(1, 30)]
            case 2:
                made[at:at] = chance.choice(INTERESTING)
            case 3:
                made[at:at] = made[max(0, at - 40) : at]
            case 4:
                del made[at:]
    return bytes(made)


def streams(seed: int) -> Iterator[bytes]:
    """Byte streams without end, the same for a seed."""
    for number in range(sys.maxsize):
        chance = random.Random(f"{seed}-{number}")
        yield mutated(chance, http1_stream(chance) if number % 2 else http2_stream(chance))


def attack(server: AttackedServer, data: bytes) -> Counter[int]:
    """Send a stream, half-close, and read what is answered. Returns the count of each HTTP/1.1 status. Raises
    `AssertionError` for a 5xx that is not typed."""
    with server.connect() as connection:
        send_all(connection, data)
        try:
            connection.shutdown(1)
        except OSError:
            pass  # the server has reset the connection
        got = read_all(connection)
    seen = Counter(int(status) for status in STATUS.findall(got))
    # Two answers of the server are errors of its own by their number: 501 and 505, each with a typed body.
    assert all(status < 500 or status in (501, 505) for status in seen), (data, got)
    assert sum(seen[status] for status in (501, 505)) == len(TYPED.findall(got)), (data, got)
    return seen


def report(server: AttackedServer, seen: Counter[int], count: int, took_s: float, before: int) -> str:
    """The figures of the run."""
    turn: LongestTurn = server.longest_turn
    return (
        f"{count} streams in {took_s:.0f} s; statuses {dict(sorted(seen.items()))}; "
        f"memory {before >> 20} MiB before, {server.rss >> 20} MiB after; {server.connections} connections left; "
        f"longest turn {turn.cpu_ms} ms of CPU time ({turn.ran})"
    )


def main() -> None:
    """Run the command line."""
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as folder, attacked_server(Path(folder)) as server:
        seen: Counter[int] = Counter()
        before, began = server.rss, time.monotonic()
        for number, data in zip(range(1, count + 1), streams(seed), strict=False):
            seen += attack(server, data)
            if number % 10_000 == 0:
                print(report(server, seen, number, time.monotonic() - began, before), flush=True)
        while server.connections:
            time.sleep(0.1)
        print(report(server, seen, count, time.monotonic() - began, before))
        log = server.log.read_text()
        assert server.is_live()
        assert "Traceback" not in log, log
        assert "connection_failed" not in log, log


if __name__ == "__main__":
    main()
