"""Sampling from top candidates: decided tokens are those of `sample`, on every backend, for common filters."""

from typing import Any

import jax
import jax.numpy as jnp
import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.request import Sampling
from workers.sampling.sample import sample
from workers.sampling.sample_spec import SampleSpec
from workers.sampling.sampling_arrays import SamplingArrays, sampling_arrays
from workers.sampling.top_candidates import CELLS, UNDECIDED, sample_top_candidates

Floats = NDArray[np.float32]
# LLVM's optimization takes most of XLA's compile time and is not under test.
jitted = jax.jit(
    lambda logits, p: sample_top_candidates(jnp, logits, p), compiler_options={"xla_backend_optimization_level": 0}
)


def make(vocab: int, scale: float, rows: int = 64) -> tuple[Floats, SamplingArrays]:
    """Return random logits, with ties, masks and non-finite rows, and parameters of all kinds."""
    r = np.random.default_rng(vocab)
    logits = (r.standard_normal((rows, vocab)) * scale).astype(np.float32)
    logits[1] = np.round(logits[1])
    logits[2] = -np.inf
    logits[3, 5] = np.nan
    logits[4, : vocab // 2] = -np.inf
    logits[5] = 1.0
    return logits, SamplingArrays(
        r.choice(np.array([0.0, 0.3, 0.8, 1.0, 1.7], np.float32), rows),
        r.choice(np.array([0, 1, 2, 7, 40, 200, 1 << 20], np.int32), rows),
        r.choice(np.array([0.1, 0.5, 0.9, 0.95, 0.99, 1.0], np.float32), rows),
        r.choice(np.array([0.0, 0.01, 0.2, 1.0], np.float32), rows),
        r.integers(0, 1 << 32, rows, dtype=np.uint32),
        r.integers(0, 1 << 31, rows, dtype=np.uint32),
        r.integers(0, 1 << 20, rows, dtype=np.uint32),
    )


@pytest.mark.parametrize(("vocab", "scale"), [(40, 1.0), (5000, 3.0), (20_000, 0.5), (60_000, 2.5)])
def test_what_is_decided_is_what_sample_returns(vocab: int, scale: float) -> None:
    logits, p = make(vocab, scale)
    expected, got = sample(np, logits, p), sample_top_candidates(np, logits, p)
    undecided = got == UNDECIDED
    np.testing.assert_array_equal(got[~undecided], expected[~undecided])
    assert undecided.mean() < 0.4
    assert not undecided.any() or vocab > 16 * CELLS


def test_every_backend_decides_the_same() -> None:
    logits, p = make(5000, 3.0)
    expected = sample_top_candidates(np, logits, p).tolist()
    assert sample_top_candidates(mx, mx.array(logits), SamplingArrays(*map(mx.array, p.given))).tolist() == expected
    assert jitted(logits, p).tolist() == expected


@pytest.mark.parametrize(
    ("fields", "decided"),
    [
        ({"top_k": CELLS}, True),
        ({"top_k": 40, "top_p": 0.95, "min_p": 0.05}, True),
        ({"top_p": 0.9}, True),
        ({"min_p": 0.05}, True),
        ({}, True),
        ({"top_k": 5000}, False),
        ({"top_p": 0.9999}, False),
        ({"min_p": 1e-7}, False),
        ({"top_k": 5000, "top_p": 0.5}, False),
    ],
)
def test_common_filters_are_decided_and_wide_ones_are_not(fields: dict[str, Any], decided: bool) -> None:
    """Logits as peaked as a language model's: the first tokens have most of the mass, over a long tail."""
    r = np.random.default_rng(3)
    logits = (-1.6 * np.log(np.arange(1, 20_001)))[r.permutation(20_000)][None].astype(np.float32)
    p = sampling_arrays([SampleSpec(Sampling(temperature=1.0, seed=4, **fields), 7)])
    (token,) = sample_top_candidates(np, logits, p).tolist()
    assert (token != UNDECIDED) == decided
    assert not decided or [token] == sample(np, logits, p).tolist()


def test_ties_that_are_too_many_are_left_to_sample() -> None:
    p = sampling_arrays([SampleSpec(Sampling(temperature=1.0, top_k=3), 1)])
    assert sample_top_candidates(np, np.zeros((1, 16 * CELLS + 1), np.float32), p).tolist() == [UNDECIDED]
    assert sample_top_candidates(np, np.zeros((1, 16 * CELLS), np.float32), p).tolist() != [UNDECIDED]
