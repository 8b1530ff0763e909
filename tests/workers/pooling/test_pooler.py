"""Poolings and activations, against numpy and in any chunks."""

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.pooling.pooler import ScorePooler, VectorPooler, activated, normalized
from workers.pooling.pooling import Pooling, PoolingKind

ROWS = np.random.default_rng(3).normal(size=(11, 6)).astype(np.float32)
EXPECTED: dict[PoolingKind, NDArray[np.float32]] = {"cls": ROWS[0], "last": ROWS[-1], "mean": ROWS.mean(0)}


def pooled(pooler: VectorPooler | ScorePooler, *ends: int) -> NDArray[np.float32]:
    for part in np.split(ROWS, ends):
        pooler.add(part)
    return pooler.vector()


@pytest.mark.parametrize("kind", sorted(EXPECTED))
def test_a_vector_is_the_same_bits_in_any_chunks(kind: PoolingKind) -> None:
    whole = pooled(VectorPooler(Pooling(kind, normalize=False)))
    np.testing.assert_allclose(whole, EXPECTED[kind], rtol=1e-6)
    assert whole.dtype == np.float32
    for ends in ((1,), (3, 4, 10), tuple(range(1, 11))):
        np.testing.assert_array_equal(pooled(VectorPooler(Pooling(kind, normalize=False)), *ends), whole)


def test_a_vector_is_projected_then_cut_then_normalized() -> None:
    pooler = VectorPooler(Pooling("last"), dimensions=2, project=lambda vector: vector[::-1])
    expected = ROWS[-1][::-1][:2]
    np.testing.assert_allclose(pooled(pooler), expected / np.linalg.norm(expected), rtol=1e-6)


def test_a_vector_of_zeros_stays_as_it_is() -> None:
    zeros = np.zeros(3, np.float32)
    np.testing.assert_array_equal(normalized(zeros), zeros)


class _Sums:
    activation = "softmax"

    def __init__(self, *, last: bool = False) -> None:
        self.last = last

    def scores(self, hidden: NDArray[np.float32], /) -> NDArray[np.float32]:
        return np.asarray(hidden.sum(0)[:3], np.float32)


def test_a_classifier_of_the_last_token_gets_its_hidden_state_alone() -> None:
    pooler = ScorePooler(_Sums(last=True))
    for rows in (ROWS[:2], ROWS[2:]):
        pooler.add(rows)
    np.testing.assert_array_equal(pooler.vector(), ROWS[-1, :3])


def test_a_classifier_reads_all_hidden_states() -> None:
    logits = ROWS.sum(0)[:3]
    np.testing.assert_array_equal(pooled(ScorePooler(_Sums()), 4), logits)
    np.testing.assert_allclose(
        pooled(ScorePooler(_Sums(), "softmax"), 4), np.exp(logits) / np.exp(logits).sum(), rtol=1e-6
    )


def test_activations_of_large_logits_are_finite() -> None:
    large = np.array([-1000.0, 0.0, 1000.0], np.float32)
    with np.errstate(over="raise"):
        np.testing.assert_array_equal(activated(large, "sigmoid"), np.array([0, 0.5, 1], np.float32))
        np.testing.assert_array_equal(activated(large, "softmax"), np.array([0, 0, 1], np.float32))
    np.testing.assert_array_equal(activated(large, "identity"), large)
