"""Prefix match: the longest prefix of the same tenant, and only rows that a cold run would compute identically."""

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.chunking import chunk_lengths
from workers.engine.prefix_match import CachedRows, PrefixPolicy, common_prefix, reusable

tokens = st.lists(st.integers(0, 1), max_size=200)


@given(tokens, tokens, st.integers(0, 250))
def test_a_common_prefix_is_the_longest(one: list[int], other: list[int], most: int) -> None:
    found = common_prefix(one, other, most)
    assert one[:found] == other[:found]
    assert found <= most
    if found < min(most, len(one), len(other)):
        assert one[found] != other[found]


@given(tokens, st.integers(0, 200), st.integers(0, 250))
def test_a_common_prefix_ends_where_a_token_differs(shared: list[int], at: int, most: int) -> None:
    other = [*shared]
    if at < len(other):
        other[at] ^= 1
    assert common_prefix(shared, other, most) == min(at, most, len(shared))


class CountedToken(int):
    """A token that counts its comparisons with others. A list does not compare an object with itself."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedToken.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_equal_tokens_are_compared_in_strides_and_not_one_by_one() -> None:
    shared = [CountedToken(token) for token in range(1000)]
    assert common_prefix([*shared, 1], [*shared, 2], 1001) == 1000
    assert 0 < CountedToken.compared < 100


def test_tenants_share_nothing() -> None:
    mine, theirs = CachedRows("a", [1, 2, 3]), CachedRows("b", [1, 2, 3], 3)
    assert reusable(mine, theirs, 3, exact_rows=True) == 0
    assert reusable(mine, CachedRows("a", [1, 2, 3], 3), 3, exact_rows=True) == 3


def test_only_written_rows_are_reused() -> None:
    assert reusable(CachedRows("", [1, 2, 3]), CachedRows("", [1, 2, 3], 2), 3, exact_rows=True) == 2


@pytest.mark.parametrize(
    ("wanted", "source", "shared", "expected"),
    [
        (20, 20, 20, 16),  # the last chunk of a source of the same length is whole, but one token must be computed
        (20, 20, 16, 16),
        (20, 20, 15, 8),
        (40, 20, 20, 16),
        (40, 20, 7, 0),
        (9, 9, 8, 8),
        (24, 20, 20, 16),
    ],
)
def test_inexact_rows_are_reused_where_chunk_ends_agree(wanted: int, source: int, shared: int, expected: int) -> None:
    sizes = (4, 8)
    ask = CachedRows("", range(wanted), 0, tuple(accumulate(chunk_lengths(wanted, sizes))))
    held = [*range(shared), *[99] * (source - shared)]
    have = CachedRows("", held, source, tuple(accumulate(chunk_lengths(source, sizes))))
    assert (
        reusable(ask, CachedRows("", have.tokens, have.rows, have.chunk_ends), wanted - 1, exact_rows=False) == expected
    )


def test_decoded_inexact_rows_are_not_reused() -> None:
    have = CachedRows("", range(30), 30, (8, 16))
    assert reusable(CachedRows("", range(40), 0, (8, 16, 24)), have, 39, exact_rows=False) == 16


def test_a_policy_may_retain_nothing_and_reuse_a_single_row() -> None:
    policy = PrefixPolicy(max_rows=0, min_tokens=1)
    assert (policy.max_rows, policy.min_tokens) == (0, 1)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_rows": -1}, "max_rows"),
        ({"min_tokens": 0}, "min_tokens"),
        ({"headroom": -0.01}, "headroom"),
        ({"headroom": 1.0}, "headroom"),
    ],
)
def test_an_invalid_policy_is_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        PrefixPolicy(**options)
