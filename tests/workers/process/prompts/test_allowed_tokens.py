"""The constraint that allowed tokens make, alone and together with a grammar."""

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.request import Sampling
from tests.workers.engine.harness.undrafted import Undrafted
from workers.engine.logits_processors import AllowedTokens
from workers.engine.request import ConstraintFailed
from workers.process.prompts.allowed_tokens import RestrictedConstraint, check_allowed, restricted
from workers.process.prompts.refusal import PromptRefused

VOCAB = 40
EOS = frozenset({0})


class Steps(Undrafted):
    """Constraint that allows these tokens at each position."""

    ended = None

    def __init__(self, *steps: set[int]) -> None:
        self._steps = [*steps]

    def accept(self, token: int) -> None:
        self._steps.pop(0)

    def mask(self) -> NDArray[np.uint32]:
        tokens = self._steps[0]
        return AllowedTokens(tokens, VOCAB).mask() if tokens else np.zeros(-(-VOCAB // 32), np.uint32)


def tokens_of(words: NDArray[np.uint32] | None) -> set[int]:
    assert words is not None
    return {token for token in range(VOCAB) if int(words[token // 32]) >> token % 32 & 1}


def test_nothing_is_restricted_without_allowed_tokens() -> None:
    grammar = Steps({1})
    assert restricted(None, Sampling(), EOS, VOCAB) is None
    assert restricted(grammar, Sampling(), EOS, VOCAB) is grammar


def test_allowed_tokens_alone() -> None:
    made = restricted(None, Sampling(allowed_tokens=(39, 3)), EOS, VOCAB)
    assert made is not None
    made.accept(3)
    assert tokens_of(made.mask()) == {3, 39}


def test_both_a_grammar_and_the_allowed_tokens_hold() -> None:
    made = restricted(Steps({1, 2, 39}, {2, 5}, set()), Sampling(allowed_tokens=(2, 39, 7)), EOS, VOCAB)
    assert isinstance(made, RestrictedConstraint)
    assert tokens_of(made.mask()) == {2, 39}
    made.accept(39)
    assert tokens_of(made.mask()) == {2}
    made.accept(2)
    assert tokens_of(made.mask()) == set(), "the answer is complete"


def test_an_answer_that_needs_other_tokens_ends_with_an_error() -> None:
    made = restricted(Steps({1}, {2}), Sampling(allowed_tokens=(1,)), EOS, VOCAB)
    assert made is not None
    assert tokens_of(made.mask()) == {1}
    made.accept(1)
    with pytest.raises(ConstraintFailed, match="none of the tokens of `allowed_token_ids`") as failed:
        made.mask()
    assert failed.value.field == "allowed_token_ids"


@pytest.mark.parametrize("eos", [EOS, frozenset()], ids=["ends", "never ends"])
def test_an_answer_that_may_end_is_complete_where_no_allowed_token_continues_it(eos: frozenset[int]) -> None:
    made = restricted(Steps({0, 2}), Sampling(allowed_tokens=(1,)), eos, VOCAB)
    assert made is not None
    if eos:
        assert tokens_of(made.mask()) == set()
    else:
        with pytest.raises(ConstraintFailed):
            made.mask()


@pytest.mark.parametrize("token", [VOCAB, 1 << 30])
def test_a_token_outside_of_the_vocabulary_is_refused(token: int) -> None:
    check_allowed(Sampling(allowed_tokens=(VOCAB - 1,)), VOCAB)
    with pytest.raises(PromptRefused, match=f"token {token}, the vocabulary has 40") as refused:
        check_allowed(Sampling(allowed_tokens=(1, token)), VOCAB)
    assert refused.value.field == "allowed_token_ids"
