"""Prompt lookup finds the last place where the last tokens occurred before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.speculation import prompt_lookup
from workers.engine.speculation.prompt_lookup import SIZES, FollowedLookup, PromptLookup, RealignedLookup


def place_of(tokens: list[int]) -> int:
    """The place, by its definition; 0 for none."""
    end = len(tokens)
    for size in SIZES:
        for place in range(end - 1, size - 1, -1):
            if tokens[place - size : place] == tokens[end - size :]:
                return place
    return 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 8))
def test_the_first_draft_is_what_followed_the_last_tokens_before(tokens: list[int], most: int) -> None:
    draft = list(PromptLookup(tokens).draft(most))
    place = place_of(tokens)
    expected = list(tokens)
    for at in range(most if place else 0):
        expected.append(expected[place + at])
    assert draft == expected[len(tokens) :]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=20))
def test_a_place_is_found_however_the_sequence_has_grown(parts: list[list[int]]) -> None:
    """A draft that is followed stays at its place, so only the search is compared."""
    tokens = [0, 1]
    grown = PromptLookup(tokens)
    for part in parts:
        tokens += part
        assert grown._find() == place_of(tokens)


@given(st.lists(st.sampled_from([0, 55296, 57343, 0x10FFFF]), min_size=1, max_size=12))
def test_any_token_of_a_vocabulary_is_a_character(tokens: list[int]) -> None:
    assert PromptLookup(tokens)._find() == place_of(tokens)


@given(st.lists(st.sampled_from([0, 1, -1, -(1 << 62)]), min_size=1, max_size=12))
def test_rows_of_embeddings_are_found_like_tokens(tokens: list[int]) -> None:
    assert PromptLookup(tokens)._find() == place_of(tokens)


def test_a_draft_stays_at_its_place_while_the_answer_follows_it() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 7, 8, 0, 1, 2]
    lookup = PromptLookup(tokens)
    followed = FollowedLookup(lookup)
    assert followed.draft(3) == (), "without a place"
    assert lookup.draft(3) == [3, 7, 8], "the last place"
    assert lookup.draft(3) == (), "while the answer follows it"
    tokens += [3, 4]
    assert followed.draft(2) == ()
    assert lookup.draft(2) == [5, 6], "three tokens of another place"
    tokens += [5, 6]
    assert lookup.draft(3) == ()
    assert followed.draft(3) == [9, 1, 2]


def test_a_sequence_that_repeats_itself_is_continued_beyond_its_end() -> None:
    assert PromptLookup([7, 1, 2, 1, 2]).draft(5) == [1, 2, 1, 2, 1]


def test_nothing_is_drafted_without_a_repetition() -> None:
    tokens = [1, 2, 3]
    lookup = PromptLookup(tokens)
    assert lookup.draft(3) == ()
    tokens += [1]
    assert lookup.draft(3) == ()
    tokens += [2]
    assert lookup.draft(2) == [3, 1]


def test_a_draft_is_realigned_behind_other_tokens() -> None:
    tokens = [1, 2, 3, 9, 4, 5, 6, 1, 2]
    lookup = PromptLookup(tokens)
    realigned = RealignedLookup(lookup)
    assert realigned.draft(3) == (), "without a place"
    assert lookup.draft(3) == [3, 9, 4]
    tokens += [3, 8]
    assert lookup.draft(3) == ()
    assert realigned.draft(3) == [4, 5, 6]
    tokens += [4, 5]
    assert lookup.draft(2) == ()
    assert FollowedLookup(lookup).draft(2) == [6, 1], "it stays there while the answer follows it"


def test_the_searched_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lookup, "MAX_SEARCHED", 10)
    tokens = list(range(100))
    lookup = PromptLookup(tokens)
    for token in range(100, 200):
        tokens.append(token)
        lookup._find()
        assert 10 <= len(lookup._text) <= 20
    tokens += [190, 191]
    assert lookup.draft(1) == [192]
    tokens += [50, 51]
    assert lookup.draft(1) == (), "too long ago"


def test_no_more_tokens_are_kept_than_twice_those_searched() -> None:
    tokens = [7] * (2 * prompt_lookup.MAX_SEARCHED)
    lookup = PromptLookup(tokens)
    tokens += [8] * prompt_lookup.MAX_SEARCHED
    lookup._find()
    assert len(lookup._text) == 2 * prompt_lookup.MAX_SEARCHED
    tokens.append(9)
    lookup._find()
    assert len(lookup._text) == prompt_lookup.MAX_SEARCHED
