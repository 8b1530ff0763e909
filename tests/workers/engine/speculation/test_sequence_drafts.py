"""Drafts that are not verified are compared, and those that fail pause."""

from workers.engine.speculation.acceptance import Acceptance
from workers.engine.speculation.loss_budget import CREDIT_STEPS, LOSS, LossBudget
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
    before = drafts.rate
    drafts.not_verified(drafts.draft(6))
    for token in range(1, 1 + UNVERIFIED):
        assert not drafts.draft(6), "while it is compared"
        tokens.append(token)
    assert drafts.draft(6) == [5, 6, 7, 8, 9, 10]
    assert drafts.rate > before
    assert (drafter.calls, drafts.drafted) == (2, 0)


def test_a_drafter_pauses_longer_each_time_that_it_would_have_failed() -> None:
    tokens, drafter, drafts = begin()
    drafts.not_verified(drafts.draft(3))
    for _ in range(1000):
        tokens.append(-1)
        if draft := drafts.draft(3):
            drafts.not_verified(draft)
    assert drafter.calls < 10 + 1000 / MAX_PAUSE
    assert drafts.rate < 0.1
    tokens += [len(tokens) + at for at in range(MAX_PAUSE + UNVERIFIED)]
    drafts.draft(3)
    drafts.verified(3, 3)
    assert (drafts.drafted, drafts.accepted) == (3, 3)


def test_the_first_drafter_with_a_draft_is_used_and_measured() -> None:
    class Silent(Counting):
        def draft(self, most: int) -> list[int]:
            return []

    tokens = [0]
    rates: dict[str, Acceptance] = {}
    drafts = SequenceDrafts(tokens, [Silent(tokens), Counting(tokens)], rates)
    assert drafts.draft(2) == [1, 2]
    drafts.verified(2, 0)
    assert rates["Silent"].rate == 0.5
    assert rates["Counting"].rate < 0.5
    assert SequenceDrafts([0], [Counting([0])], rates).rate == rates["Counting"].rate, "that of others"


def test_a_rate_begins_with_that_of_others_and_forgets() -> None:
    others = Acceptance()
    for _ in range(200):
        others.record(4, 4)
    assert others.rate > 0.95
    mine = Acceptance(others)
    assert mine.rate == others.rate
    for _ in range(100):
        mine.record(4, 0)
    assert mine.rate < 0.1
    assert others.rate < 0.1, "it learns what each does"


def test_what_follows_a_rejected_token_tells_nothing() -> None:
    short, long = Acceptance(), Acceptance()
    short.record(3, 2)
    long.record(30, 2)
    assert short.rate == long.rate


def test_losses_are_paid_by_a_part_of_the_steps_and_by_gains() -> None:
    budget = LossBudget()
    budget.pay(0.5)
    steps = 0
    while budget.spent:
        budget.step(1.0)
        steps += 1
    assert steps == round(0.5 / LOSS)
    budget.step(1.0, gained=100.0)
    budget.pay(CREDIT_STEPS * LOSS + 0.001)
    assert budget.spent, "gains are not saved for long"
