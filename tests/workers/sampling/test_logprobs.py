"""Log-probabilities: against float64, and identical on every backend and in every batch."""

from typing import Any

import jax
import jax.numpy as jnp
import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.bounds import MIN_LOGPROB
from workers.sampling.logprobs import RowLogprobs, decode_report, report

Floats = NDArray[np.float32]
# LLVM's optimization takes most of XLA's compile time and is not under test.
jitted = jax.jit(lambda *a: report(jnp, *a), compiler_options={"xla_backend_optimization_level": 0})


def make(vocab: int, scale: float, rows: int = 4) -> tuple[Floats, NDArray[np.int32]]:
    """Return random logits, with a row of many ties and a half-masked one, and sampled tokens."""
    r = np.random.default_rng(vocab)
    logits = (r.standard_normal((rows, vocab)) * scale).astype(np.float32)
    logits[1] = np.round(logits[1])
    logits[2, : vocab // 2] = -np.inf
    return logits, r.integers(0, vocab, rows, dtype=np.int32)


def on_numpy(logits: Floats, tokens: NDArray[np.int32]) -> list[RowLogprobs]:
    return decode_report(*report(np, logits, tokens), logits.shape[1])


def on_jax(logits: Floats, tokens: NDArray[np.int32]) -> list[RowLogprobs]:
    ids, distance, mass = map(np.array, jitted(logits, tokens))
    return decode_report(ids, distance, mass, logits.shape[1])


def on_mlx(logits: Floats, tokens: NDArray[np.int32]) -> list[RowLogprobs]:
    ids, distance, mass = map(np.array, report(mx, mx.array(logits), mx.array(tokens)))
    return decode_report(ids, distance, mass, logits.shape[1])


SIZES = pytest.mark.parametrize(("vocab", "scale"), [(5000, 3.0), (12, 1.0), (320, 10.0), (321, 0.01)])


@SIZES
def test_against_float64(vocab: int, scale: float) -> None:
    logits, tokens = make(vocab, scale)
    with np.errstate(divide="ignore"):
        shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
        exact = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    for row, got in enumerate(on_numpy(logits, tokens)):
        order = np.lexsort((np.arange(vocab), -logits[row]))[:20]
        assert got.tokens == tuple(order.tolist())
        expected = np.maximum(exact[row], MIN_LOGPROB)
        np.testing.assert_allclose(got.logprobs, expected[order], rtol=1e-5, atol=2e-5)
        np.testing.assert_allclose(got.logprob, expected[tokens[row]], rtol=1e-5, atol=2e-5)


def test_a_flat_tail_counts() -> None:
    """A hundred thousand tokens, each less likely than 2**-25 of the first: together they are 1 in 400."""
    logits = np.full((1, 100_000), -np.log(99_999.0) - 6.0, np.float32)
    logits[0, 0] = 0.0
    (got,) = on_numpy(logits, np.array([0], np.int32))
    np.testing.assert_allclose(got.logprob, -np.log1p(np.exp(-6.0)), atol=2e-5)


@pytest.mark.parametrize("run", [on_jax, on_mlx])
@SIZES
def test_every_backend_reports_the_same(run: Any, vocab: int, scale: float) -> None:
    logits, tokens = make(vocab, scale)
    assert run(logits, tokens) == on_numpy(logits, tokens)


@pytest.mark.parametrize("run", [on_numpy, on_mlx])
def test_a_row_does_not_see_its_batch(run: Any) -> None:
    logits, tokens = make(1000, 2.0)
    whole = run(logits, tokens)
    assert [run(logits[row : row + 1], tokens[row : row + 1])[0] for row in range(4)] == whole
