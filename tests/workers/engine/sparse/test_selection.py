"""Chunks of a prompt are kept by their scores, some of them in any case."""

import numpy as np
import pytest

from workers.engine.sparse.attention_scores import POOL, layer_scores
from workers.engine.sparse.cost import PromptCost, pays
from workers.engine.sparse.kept_rows import KeptRows
from workers.engine.sparse.selection import CHUNK, TURN_TOKENS, choose, forced_ranges, keeps_all, kept_chunks


@pytest.mark.parametrize(
    ("prompt", "head", "turn", "forced"),
    [
        (1000, 0, None, ((0, 32), (936, 1000))),
        (1000, 100, 900, ((0, 100), (900, 1000))),
        (1000, 5, 990, ((0, 32), (936, 1000))),
        (1000, 5, 5, ((0, 32), (1000 - TURN_TOKENS, 1000))),
        (1000, 800, 744, ((0, 1000),)),
        (20, 0, None, ((0, 20),)),
    ],
    ids=["text", "chat", "short turn", "long turn", "all", "short"],
)
def test_what_is_kept_in_any_case(
    prompt: int, head: int, turn: int | None, forced: tuple[tuple[int, int], ...]
) -> None:
    assert forced_ranges(prompt, head, turn) == forced


def test_the_chunks_with_the_highest_mean_are_kept_the_first_ones_of_equal_ones() -> None:
    scores = np.zeros(10 * CHUNK, np.float32)
    scores[5 * CHUNK : 6 * CHUNK] = 1.0
    forced = forced_ranges(len(scores))
    assert choose(scores, 0.4, forced) == ((0, 32), (160, 192), (256, 320))
    assert choose(scores, 0.5, forced) == ((0, 64), (160, 192), (256, 320)), "chunk 1 is the first of the others"
    assert choose(scores, 0.05, forced) == ((0, 32), (256, 320)), "what is kept in any case may be more"


def test_the_last_chunk_may_be_a_part_of_one() -> None:
    scores = np.zeros(10 * CHUNK + 3, np.float32)
    kept = choose(scores, 0.05, forced_ranges(len(scores)))
    assert kept == ((0, 32), (256, 323))
    assert kept_chunks(len(scores), 0.1) == 2
    assert kept_chunks(len(scores), 1.0) == 11


def test_a_prompt_of_which_nothing_would_be_left_out() -> None:
    assert keeps_all(320, 1.0, forced_ranges(320))
    assert not keeps_all(320, 0.9, forced_ranges(320))
    assert keeps_all(96, 0.05, forced_ranges(96))
    assert not keeps_all(128, 0.05, forced_ranges(128))


def test_positions_of_rows_go_on_after_the_prompt() -> None:
    rows = KeptRows.of(((0, 2), (5, 7)), 7)
    assert (rows.positions, rows.left_out, rows.ranges) == ((0, 1, 5, 6), 3, ((0, 2), (5, 7)))
    assert [tuple(rows.of_rows(start, end)) for start, end in ((1, 3), (2, 6), (4, 6), (5, 6))] == [
        (1, 5),
        (5, 6, 7, 8),
        (7, 8),
        (8,),
    ]


@pytest.mark.parametrize(
    "ranges", [(), ((0, 6),), ((0, 8),), ((2, 1), (5, 7)), ((0, 0), (5, 7)), ((3, 5), (0, 7))], ids=str
)
def test_ranges_that_are_not_those_of_a_prompt_are_refused(ranges: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="kept ranges"):
        KeptRows.of(ranges, 7)


@pytest.mark.parametrize("tokens", [5, 40])
def test_scores_are_the_pooled_attention_of_the_head_that_attends_most(tokens: int) -> None:
    randomness = np.random.default_rng(3)
    queries = randomness.standard_normal((2, 6, 8), np.float32)
    keys = randomness.standard_normal((3, tokens, 8), np.float32)
    expected = np.zeros((2, tokens))
    for row in range(2):
        for head in range(6):
            weights = np.exp(keys[head // 2].astype(float) @ queries[row, head])
            weights /= weights.sum()
            pooled = np.convolve(weights, np.ones(POOL) / POOL)[POOL // 2 :][:tokens]
            expected[row] = np.maximum(expected[row], pooled)
    assert np.allclose(layer_scores(queries, keys), expected, rtol=1e-5)


def test_scoring_pays_up_to_a_third() -> None:
    model = PromptCost(weights=900, attention=3)
    assert pays(PromptCost(300, 1), model, 100)
    assert not pays(PromptCost(301, 1), model, 100)
    draft = PromptCost(100, 2)
    assert pays(draft, model, 200)
    assert not pays(draft, model, 201), "the attention of the draft grows faster"
