"""Lines of a child: whole, bounded, and not too many."""

from hypothesis import given
from hypothesis import strategies as st

from actors.process.stderr_lines import LineCutter


@given(text=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=10))
def test_pieces_make_the_same_lines_as_the_whole(text: bytes, cuts: list[int]) -> None:
    cutter = LineCutter(max_bytes=1000, per_second=1000)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    lines = [line for a, b in zip(edges, edges[1:], strict=False) for line in cutter.feed(text[a:b], 0.0)]  # noqa: RUF007
    assert lines + cutter.finish(0.0) == [line for line in text.split(b"\n") if line]


@given(text=st.binary(max_size=500), limit=st.integers(1, 20))
def test_no_line_is_over_its_bound(text: bytes, limit: int) -> None:
    cutter = LineCutter(max_bytes=limit, per_second=1000)
    lines = cutter.feed(text, 0.0) + cutter.finish(0.0)
    assert lines == [line[:limit] for line in text.split(b"\n") if line]


def test_a_line_without_end_keeps_its_start_only() -> None:
    cutter = LineCutter(max_bytes=4)
    for _ in range(1000):
        assert cutter.feed(b"abcdefgh", 0.0) == []
    assert cutter.feed(b"\nnext\n", 0.0) == [b"abcd", b"next"]


def test_a_flood_is_counted_and_ends_with_its_second() -> None:
    cutter = LineCutter(per_second=3)
    assert cutter.feed(b"1\n2\n3\n4\n5\n", 10.0) == [b"1", b"2", b"3"]
    assert cutter.feed(b"6\n", 10.999) == []
    assert cutter.take_suppressed() == 3
    assert cutter.take_suppressed() == 0
    assert cutter.feed(b"7\n", 11.0) == [b"7"]
