"""Drafts that are not verified are compared, and those that fail pause."""

from workers.engine.speculation.acceptance import KNOWN_TOKENS, Acceptance
from workers.engine.speculation.sequence_drafts import MAX_PAUSE, UNVERIFIED, SequenceDrafts


class Counting:
    """Drafts the numbers after the length of a sequence."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.calls = 0

    def draft(self, most: int) -> list[int]:
        self.calls += 1
        return [len(self.tokens) + at for at in range(most)]


def begin() -> tuple[list[int], Counting, SequenceDrafts]:
    tokens = [0]
    drafter = Counting(tokens)
    return tokens, drafter, SequenceDrafts(tokens, [drafter], {})


def test_a_draft_that_was_not_verified_counts_as_the_tokens_show() -> None:
    tokens, drafter, drafts = begin()
    before = (drafts.first, drafts.rate)
    drafts.not_verified(drafts.draft(6))
    for token in range(1, 1 + UNVERIFIED):
        assert not drafts.draft(6), "while it is compared"
        tokens.append(token)
    assert drafts.draft(6) == [5, 6, 7, 8, 9, 10]
    assert (drafts.first, drafts.rate) > before
    assert drafter.calls == 2
    assert drafts.recent_share == 0.0, "it was not verified"


def test_a_drafter_pauses_longer_each_time_that_it_would_have_failed() -> None:
    tokens, drafter, drafts = begin()
    drafts.not_verified(drafts.draft(3))
    for _ in range(1000):
        tokens.append(-1)
        if draft := drafts.draft(3):
            drafts.not_verified(draft)
    assert drafter.calls < 10 + 1000 / MAX_PAUSE
    assert drafts.first < 0.1
    tokens += [len(tokens) + at for at in range(MAX_PAUSE + UNVERIFIED)]
    drafts.draft(3)
    drafts.verified(3, 3)
    assert drafts.recent_share > 0.0


def test_the_draft_of_which_most_is_expected_is_used() -> None:
    class One(Counting):
        def draft(self, most: int) -> list[int]:
            return [7]

    tokens = [0]
    drafts = SequenceDrafts(tokens, [One(tokens), Counting(tokens)], {})
    assert drafts.draft(4) == [1, 2, 3, 4], "four tokens of one rate, rather than one"
    for _ in range(20):
        drafts.verified(4, 0)
    assert drafts.draft(4) == [7]
    assert drafts.first == 0.5, "that of the other drafter"


def test_a_draft_that_a_constraint_forbids_counts_for_its_sequence_alone() -> None:
    rates: dict[str, Acceptance] = {}
    tokens = [0]
    drafts = SequenceDrafts(tokens, [Counting(tokens)], rates)
    for _ in range(20):
        drafts.draft(3)
        drafts.forbidden()
    assert drafts.first < 0.1
    assert rates["Counting"].first == 0.5
    assert drafts.recent_share == 0.0


def test_the_share_of_accepted_tokens_is_that_of_the_last_ones() -> None:
    tokens = [0] * 100
    drafts = SequenceDrafts(tokens, [Counting(tokens)], {})
    assert drafts.recent_share == 0.0
    for _ in range(3):
        drafts.draft(3)
        drafts.verified(4, 3)
        tokens.extend([0] * 4)
    assert 0.7 < drafts.recent_share < 0.8, "three of four"
    tokens.extend([0] * 300)
    assert drafts.recent_share < 0.01


def test_expected_tokens_are_the_sum_of_their_probabilities() -> None:
    acceptance = Acceptance()
    first, rate = acceptance.first, acceptance.rate
    assert acceptance.expected(3) == first * (1 + rate + rate * rate)
    for _ in range(2000):
        acceptance.record(4, 4)
    assert acceptance.expected(5) <= 5.0


def test_the_first_drafter_with_a_draft_is_used_and_measured() -> None:
    class Silent(Counting):
        def draft(self, most: int) -> list[int]:
            return []

    tokens = [0]
    rates: dict[str, Acceptance] = {}
    drafts = SequenceDrafts(tokens, [Silent(tokens), Counting(tokens)], rates)
    assert drafts.draft(2) == [1, 2]
    drafts.verified(2, 0)
    assert rates["Silent"].first == 0.5
    assert rates["Counting"].first < 0.5
    assert SequenceDrafts([0], [Counting([0])], rates).first == rates["Counting"].first, "that of others"


def test_rates_begin_with_those_of_others_and_forget() -> None:
    others = Acceptance()
    for _ in range(200):
        others.record(4, 4)
    assert min(others.first, others.rate) > 0.95
    mine = Acceptance(others)
    assert (mine.first, mine.rate) == (others.first, others.rate)
    for _ in range(100):
        mine.record(4, 0)
    assert mine.first < 0.1
    assert others.first < 0.1, "it learns what each does"
    for _ in range(100):
        mine.record(4, 1)
    assert mine.first > 0.9
    assert mine.rate < 0.1


def test_the_first_token_and_those_after_it_are_counted_apart() -> None:
    acceptance = Acceptance()
    for _ in range(100):
        acceptance.record(6, 6)
        acceptance.record(6, 0)
    assert 0.4 < acceptance.first < 0.6
    assert acceptance.rate > 0.95


def test_drafts_of_one_token_tell_that_longer_ones_may_be_right() -> None:
    others = Acceptance()
    mine = Acceptance(others)
    for _ in range(30):
        mine.record(1, 1)
    assert (mine.rate, others.rate) == (mine.first, others.first), "no further token was drafted"
    for _ in range(KNOWN_TOKENS):
        mine.record(2, 1)
    assert mine.rate < 0.2 < 0.9 < mine.first
    assert Acceptance(others).rate == others.rate, "that of others is known"


def test_what_follows_a_rejected_token_tells_nothing() -> None:
    short, long = Acceptance(), Acceptance()
    short.record(3, 2)
    long.record(30, 2)
    assert (short.first, short.rate) == (long.first, long.rate)
