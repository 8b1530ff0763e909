"""The contexts of several models within one memory budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.models.context_shares import ModelMemory, choose_contexts, rounded

LEAST, MOST = 4096, 131_072


def model(
    fixed: int = 0, *, rows: int = LEAST, least: int = LEAST, most: int = MOST, start: bool = False
) -> ModelMemory:
    return ModelMemory(fixed, 1, rows, least, most, start)


@pytest.mark.parametrize(
    ("budget", "context"),
    [
        (MOST + 10, MOST),
        (MOST + 9, 122_880),
        (8192 + 10, 8192),
        (8192 + 9, 7680),
        (LEAST + 10, LEAST),
        (LEAST, LEAST),
        (0, LEAST),
    ],
)
def test_one_model_has_its_own_context_if_one_sequence_fits_beside_its_weights(budget: int, context: int) -> None:
    assert choose_contexts([model(10)], budget) == [context]


def test_a_context_that_the_least_cache_holds_costs_nothing() -> None:
    assert choose_contexts([model(rows=32_768)], 0) == [32_768]
    assert choose_contexts([model(rows=32_768, most=20_000)], 0) == [20_000]
    assert choose_contexts([model(rows=40_000)], 0) == [36_864], "rounded"


def test_models_that_fit_together_stay_together_and_share_what_is_left() -> None:
    assert choose_contexts([model(), model()], 2 * MOST) == [MOST, MOST]
    assert choose_contexts([model(), model()], 2 * 16_384) == [16_384, 16_384]
    assert choose_contexts([model(most=8192), model()], 8192 + 65_536) == [8192, 65_536], "one needs less"
    assert choose_contexts([model(), model()], 2 * LEAST) == [LEAST, LEAST]


def test_models_that_do_not_fit_together_have_the_budget_in_turn() -> None:
    budget = 100_000
    assert choose_contexts([model(90_000), model(50_000)], budget) == [9216, 49_152]


def test_a_model_leaves_room_for_those_that_fit_beside_it() -> None:
    small, large = model(10_000), model(60_000)
    contexts = choose_contexts([small, small, large], 100_000)
    together = sum(
        each.bytes(context) for each, context in zip((small, large), (contexts[0], contexts[2]), strict=True)
    )
    assert together <= 100_000
    assert contexts[0] == contexts[1] > LEAST


def test_models_of_the_start_fit_together_whatever_the_others_are() -> None:
    start = [model(20_000, start=True), model(40_000, start=True)]
    contexts = choose_contexts([*start, model(100)], 70_000)
    assert sum(each.bytes(context) for each, context in zip(start, contexts, strict=False)) <= 70_000


def test_what_is_set_stays() -> None:
    fixed = model(least=500, most=500, rows=4000)
    assert choose_contexts([fixed, model()], 4000 + 16_384) == [500, 16_384]
    assert choose_contexts([], 5) == []


MODELS = st.builds(
    ModelMemory,
    st.integers(0, 1 << 20),
    st.integers(0, 64),
    st.integers(1, 1 << 16),
    st.integers(2, LEAST),
    st.integers(LEAST, 1 << 20),
    st.booleans(),
)


@given(st.lists(MODELS, max_size=5), st.integers(0, 1 << 24))
def test_all_that_fits_together_with_the_least_contexts_does_with_the_chosen_ones(
    models: list[ModelMemory], budget: int
) -> None:
    chosen = choose_contexts(models, budget)
    assert all(each.least <= context <= each.most for each, context in zip(models, chosen, strict=True))
    pairs = list(zip(models, chosen, strict=True))
    assert all(context == each.most or context == rounded(context) or context == each.least for each, context in pairs)
    assert all(
        each.bytes(context) <= budget or each.bytes(each.least) == each.bytes(context) for each, context in pairs
    )
    if sum(each.bytes(each.least) for each in models) <= budget:
        assert sum(each.bytes(context) for each, context in pairs) <= budget
    at_start = [(each, context) for each, context in pairs if each.at_start]
    if sum(each.bytes(each.least) for each, _ in at_start) <= budget:
        assert sum(each.bytes(context) for each, context in at_start) <= budget


@given(st.integers(1, 1 << 30))
def test_an_eighth_at_most_is_lost_by_rounding(tokens: int) -> None:
    assert tokens * 7 / 8 < rounded(tokens) <= tokens
    assert rounded(rounded(tokens)) == rounded(tokens)
