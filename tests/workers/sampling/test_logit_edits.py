"""Edits and masks: their effect on logits, bitwise identical on every backend."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.request import Sampling
from workers.sampling.logit_edits import apply_edits, apply_mask, edit_calls, stack_masks
from workers.sampling.sample_spec import LogitEdits, SampleSpec

VOCAB = 1000
Floats = NDArray[np.float32]


def random_logits(rows: int = 6) -> Floats:
    return (np.random.default_rng(1).standard_normal((rows, VOCAB)) * 4).astype(np.float32)


def random_edits(count: int, seed: int) -> LogitEdits:
    r = np.random.default_rng(seed)
    bias = r.uniform(-3, 3, count).astype(np.float32)
    bias[::7] = -math.inf
    up = r.uniform(0.5, 1.5, count).astype(np.float32)
    tokens = r.permutation(VOCAB)[:count].astype(np.int32)
    return LogitEdits(tokens, bias, up, np.reciprocal(up), r.uniform(-2, 9, count).astype(np.float32))


SPECS = [
    SampleSpec(Sampling(), 1, random_edits(600, 0)),
    SampleSpec(Sampling(), 1),
    SampleSpec(Sampling(), 1, random_edits(3, 2), np.full(32, 0x0F0F0F0F, np.uint32)),
    SampleSpec(Sampling(), 1, random_edits(512, 3)),
    SampleSpec(Sampling(), 1, None, np.arange(1, 33, dtype=np.uint32)),
    SampleSpec(Sampling(), 1, random_edits(1000, 4)),
]


def on_numpy(logits: Floats) -> Floats:
    for arrays in edit_calls(SPECS):
        logits = apply_edits(np, logits, *arrays)
    words = stack_masks(SPECS, VOCAB)
    assert words is not None
    out: Floats = apply_mask(np, logits, words)
    return out


def on_jax(logits: Floats) -> Floats:
    edit, mask = jax.jit(lambda *a: apply_edits(jnp, *a)), jax.jit(lambda *a: apply_mask(jnp, *a))
    out: Any = logits
    for arrays in edit_calls(SPECS):
        out = edit(out, *arrays)
    return np.array(mask(out, stack_masks(SPECS, VOCAB)))


def on_mlx(logits: Floats) -> Floats:
    out, words = mx.array(logits), stack_masks(SPECS, VOCAB)
    assert words is not None
    for arrays in edit_calls(SPECS):
        out = apply_edits(mx, out, *map(mx.array, arrays))
    return np.array(apply_mask(mx, out, mx.array(words)))


def test_edits_and_masks_follow_their_definition() -> None:
    logits = random_logits()
    expected = logits.astype(np.float64)
    for row, spec in enumerate(SPECS):
        edits = spec.edits
        if edits is not None:
            biased = expected[row, edits.tokens] + edits.bias
            expected[row, edits.tokens] = biased * np.where(biased > 0, edits.up, edits.down) - edits.minus
        if spec.mask is not None:
            allowed = [bool(int(spec.mask[token // 32]) >> token % 32 & 1) for token in range(VOCAB)]
            expected[row, ~np.array(allowed)] = -math.inf
    actual = on_numpy(logits)
    assert (np.isneginf(actual) == np.isneginf(expected)).all()
    finite = np.isfinite(expected)
    np.testing.assert_allclose(actual[finite], expected[finite], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(actual[1], logits[1])


@pytest.mark.parametrize("run", [on_jax, on_mlx])
def test_every_backend_makes_equal_logits(run: Any) -> None:
    logits = random_logits()
    kept = logits.copy()
    np.testing.assert_array_equal(run(logits).view(np.uint32), on_numpy(kept).view(np.uint32))
    np.testing.assert_array_equal(logits, kept)


def test_the_row_with_most_edits_determines_the_number_of_calls() -> None:
    assert list(edit_calls([SampleSpec(Sampling(), 1)])) == []
    assert [len(list(edit_calls([SPECS[0], SPECS[1]], size))) for size in (599, 600, 601)] == [2, 1, 1]
    first, second = edit_calls([SPECS[0], SPECS[2]], 512)
    assert first.tokens.shape == (2, 512)
    assert second.tokens[0, 88:].tolist() == [SPECS[0].edits.tokens[512]] * 424  # type: ignore[union-attr]
    assert second.up[1].tolist() == [1.0] * 512


def test_no_masks_where_no_row_has_one() -> None:
    assert stack_masks(SPECS[:2], VOCAB) is None
    words = stack_masks(SPECS[1:3], VOCAB)
    assert words is not None
    assert words[:, 5].tolist() == [0xFFFFFFFF, 0x0F0F0F0F]
