"""Chunking: prompts are split within the sizes and at the lowest cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.chunking import CALL_TOKENS, chunk_ends, chunk_lengths

SIZES = [(1,), (16,), (4, 16, 64), (16, 128, 512), (7, 8), (32, 33, 1000)]


@given(st.integers(0, 5000), st.sampled_from(SIZES))
def test_chunks_cover_the_length_and_fit_the_sizes(length: int, sizes: tuple[int, ...]) -> None:
    parts = chunk_lengths(length, sizes)
    assert sum(parts) == length
    for part in parts:
        assert 0 < part <= sizes[-1]
    assert all(part in sizes for part in parts[:-1])
    assert sorted(parts[:-1], reverse=True) == list(parts[:-1])


@pytest.mark.parametrize("sizes", [*SIZES, (16, 20, 512), (5, 30, 60)])
def test_no_other_split_is_cheaper(sizes: tuple[int, ...]) -> None:
    """Compared with all splits that take the largest size that fits, or end with one that covers the rest."""
    costs: dict[int, int] = {0: 0}
    for rest in range(1, sizes[-1]):
        fitting = next((chunk for chunk in reversed(sizes) if chunk <= rest), None)
        covering = next(chunk for chunk in sizes if chunk >= rest) + CALL_TOKENS
        costs[rest] = covering if fitting is None else min(covering, fitting + CALL_TOKENS + costs[rest - fitting])
    for length in range(1, 600):
        parts = chunk_lengths(length, sizes)
        spent = sum(next(chunk for chunk in sizes if chunk >= part) + CALL_TOKENS for part in parts)
        assert spent == length // sizes[-1] * (sizes[-1] + CALL_TOKENS) + costs[length % sizes[-1]], length


@pytest.mark.parametrize(
    ("length", "parts"),
    [
        (0, ()),
        (1, (1,)),
        (16, (16,)),
        (17, (16, 1)),
        (40, (16, 16, 8)),
        (60, (60,)),
        (127, (127,)),
        (128, (128,)),
        (129, (128, 1)),
        (257, (128, 128, 1)),
        (400, (128, 128, 128, 16)),
        (500, (500,)),
        (512, (512,)),
        (1024 + 140, (512, 512, 128, 12)),
    ],
)
def test_chunks_of_some_lengths(length: int, parts: tuple[int, ...]) -> None:
    assert chunk_lengths(length, (16, 128, 512)) == parts


def test_equal_costs_favour_fewer_calls() -> None:
    assert chunk_lengths(96, (32, 64, 128)) == (96,)


@pytest.mark.parametrize(("length", "sizes"), [(-1, (4,)), (1, ()), (1, (0, 4)), (1, (8, 4)), (1, (4, 4))])
def test_invalid_arguments_are_refused(length: int, sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"length|sizes"):
        chunk_lengths(length, sizes)


@pytest.mark.parametrize(
    ("kept", "ends"),
    [
        ((), (64, 100)),
        ((60, 64), (64, 100)),
        ((60, 70), (60, 100)),
        ((0, 64), (64, 100)),
        ((10, 74), (10, 74, 100)),
        ((90, 100), (64, 100)),
    ],
)
def test_chunks_split_no_range_that_must_be_whole(kept: tuple[int, ...], ends: tuple[int, ...]) -> None:
    def whole(length: int) -> int:
        return kept[0] if kept and kept[0] < length < kept[1] else length

    assert chunk_ends(100, (40, 64), whole) == ends
    if not kept:
        assert chunk_ends(100, (40, 64), whole) == (64, 64 + chunk_lengths(36, (40, 64))[0])


def test_a_range_that_is_longer_than_the_largest_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="65 tokens in one chunk, the largest has 64"):
        chunk_ends(100, (40, 64), lambda length: 10 if 10 < length < 75 else length)
