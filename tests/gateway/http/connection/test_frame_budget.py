"""The budget of HTTP/2 frames, without a socket or a clock."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.connection.frame_budget import PIECE_BYTES, PREFACE, FrameBudget, OverBudget

HEADERS, RST, SETTINGS, PING, WINDOW, CONTINUATION = 1, 3, 4, 6, 8, 9
END_STREAM = 1


def frame(kind: int, size: int = 0, *, flags: int = 0, stream: int = 1) -> bytes:
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + bytes(size)


def budget() -> FrameBudget:
    made = FrameBudget(max_header_bytes=1000)
    assert list(made.pieces(PREFACE, 0.0)) == [PREFACE]
    return made


def spend(made: FrameBudget, data: bytes, now: float = 0.0) -> None:
    for _ in made.pieces(data, now):
        pass


@given(
    st.lists(st.tuples(st.sampled_from([0, HEADERS, WINDOW]), st.integers(0, 900)), max_size=40),
    st.lists(st.integers(1, 3000), min_size=1, max_size=20),
)
def test_the_pieces_are_the_bytes_in_order_however_they_arrive(frames: list[tuple[int, int]], reads: list[int]) -> None:
    data = b"".join(frame(kind, size, flags=4) for kind, size in frames)
    made, at, got = budget(), 0, bytearray()
    while at < len(data):
        for read in reads:
            for piece in made.pieces(data[at : at + read], 0.0):
                assert 0 < len(piece) <= PIECE_BYTES + 1000
                got += piece
            at += read
    assert bytes(got) == data


FLOODS = {
    "resets": (frame(RST, 4), 1000),
    "settings": (frame(SETTINGS, 6, stream=0), 500),
    "acknowledged settings": (frame(SETTINGS, flags=1, stream=0), 1000),
    "ping": (frame(PING, 8, stream=0), 1000),
    "window updates": (frame(WINDOW, 4), 1000),
    "empty data": (frame(0), 1000),
    "small data": (frame(0, 16), 20_000),
    "padded data": (frame(0, 256, flags=8), 10_000),
    "empty continuations": (frame(CONTINUATION), 1000),
}


@pytest.mark.parametrize(("flood", "most"), FLOODS.values(), ids=FLOODS)
def test_so_many_frames_may_come_at_once_and_some_each_second(flood: bytes, most: int) -> None:
    made = budget()
    spend(made, flood * most)
    with pytest.raises(OverBudget):
        spend(made, flood)
    later = budget()
    spend(later, flood * most)
    spend(later, flood, now=1.0)


@pytest.mark.parametrize("flags", [0, 4], ids=["in several frames", "in one frame"])
def test_a_block_of_headers_has_a_bound(flags: int) -> None:
    made = budget()
    spend(made, frame(HEADERS, 600, flags=flags))
    with pytest.raises(OverBudget):
        spend(made, frame(CONTINUATION, 401) if not flags else frame(HEADERS, 1001, stream=3))


def test_requests_and_data_that_is_sent_earn_frames() -> None:
    made = budget()
    for stream in range(1, 20_000, 2):
        spend(made, frame(HEADERS, 10, flags=5, stream=stream) + frame(WINDOW, 4, stream=stream) * 8)
    for _ in range(10_000):
        made.sent(200)
        spend(made, frame(WINDOW, 4) * 4)


def test_data_in_single_bytes_earns_nothing() -> None:
    made = budget()
    for _ in range(1100):
        made.sent(1)
    spend(made, frame(WINDOW, 4) * 1000)
    for _ in range(30):
        made.sent(1)
    with pytest.raises(OverBudget):
        spend(made, frame(WINDOW, 4))


def test_resets_are_not_earned() -> None:
    made = budget()
    cancelled = (frame(HEADERS, 10, flags=5, stream=each) + frame(RST, 4, stream=each) for each in range(1, 2003, 2))
    with pytest.raises(OverBudget):
        spend(made, b"".join(cancelled))
    other = budget()
    for _ in range(1000):
        other.count_reset(0.0)
    with pytest.raises(OverBudget):
        other.count_reset(0.0)
