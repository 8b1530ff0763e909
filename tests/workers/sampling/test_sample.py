"""Sampling: the filters against a sort in float64, the distribution, and the same token on every backend."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.request import Sampling
from tests.workers.sampling.plain_sampling import kept
from workers.sampling import fixed_point as ratios
from workers.sampling.sample import (
    GROUP,
    filtered_weights,
    greedy,
    needs_filters,
    needs_sampling,
    sample,
    sample_at,
)
from workers.sampling.sample_spec import SampleSpec
from workers.sampling.sampling_arrays import SamplingArrays, sampling_arrays
from workers.sampling.vocabulary_blocks import BLOCK, take

Floats = NDArray[np.float32]
ROWS, VOCAB = 20, 5000
"""Sampled on all backends: jax takes seconds to compile for each size. More blocks than are of one group."""


def rows(count: int, **fields: Any) -> SamplingArrays:
    """Return the parameters of `count` rows, with different positions unless given."""
    positions = fields.pop("positions", range(count))
    return sampling_arrays([SampleSpec(Sampling(**fields), position) for position in positions])


def random_logits(count: int, vocab: int, seed: int = 0, scale: float = 3.0) -> Floats:
    return (np.random.default_rng(seed).standard_normal((count, vocab)) * scale).astype(np.float32)


def random_parameters(count: int, seed: int = 0) -> SamplingArrays:
    r = np.random.default_rng(seed)
    return SamplingArrays(
        r.choice(np.array([0.0, 0.3, 0.8, 1.0, 1.7, 100.0], np.float32), count),
        r.choice(np.array([0, 1, 2, 7, 40, 1 << 20], np.int32), count),
        r.choice(np.array([0.1, 0.5, 0.9, 0.99, 1.0], np.float32), count),
        r.choice(np.array([0.0, 0.01, 0.2, 1.0], np.float32), count),
        r.integers(0, 1 << 32, count, dtype=np.uint32),
        r.integers(0, 1 << 31, count, dtype=np.uint32),
        r.integers(0, 1 << 20, count, dtype=np.uint32),
        r.choice(np.array([1e-9, 0.2, 0.9, 1.0, 1.0, 1.0], np.float32), count),
        r.choice(np.array([0.0, 0.0, 0.5, 1.0], np.float32), count),
        r.choice(np.array([0.0, 0.05, 0.1, 0.5], np.float32), count),
    )


def weights_of(logits: Floats, **fields: Any) -> NDArray[np.uint32]:
    """Return the filtered weights as [B, V]."""
    p = rows(len(logits), **fields)
    weights = filtered_weights(np, logits, p)
    return np.asarray(weights.reshape(len(logits), -1)[:, : logits.shape[1]])


def by_sorting(row: Floats, temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    """Return the kept ids of one row by the plain definition."""
    return kept(row, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


def test_weights_are_monotonic_powers_of_two() -> None:
    steps = np.arange(26 * 65536 + 1, dtype=np.uint32)
    weights = ratios.weights_of(np, steps)
    exact = 2.0 ** (24 - steps / 65536.0)
    assert weights[0] == 1 << 24
    assert weights[-1] == 0
    assert (np.diff(weights.astype(np.int64)) <= 0).all()
    assert (np.abs(weights - exact) <= 0.51 + 1e-5 * exact).all()


@pytest.mark.parametrize("vocab", [2, 50, 127, 128, 129, 4096, 4097])
@pytest.mark.parametrize("top_k", [2, 3, 40, 127, 4096, 5000])
def test_top_k_keeps_exactly_what_sorting_keeps(vocab: int, top_k: int) -> None:
    logits = random_logits(8, vocab, scale=1.0)
    weights = weights_of(logits, temperature=1.0, top_k=top_k)
    for row, weight in zip(logits, weights, strict=True):
        assert set(np.flatnonzero(weight).tolist()) == by_sorting(row, 1.0, top_k, 1.0, 0.0)


def test_top_k_keeps_ties_with_the_last_one() -> None:
    logits = np.array([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]], np.float32)
    assert np.flatnonzero(weights_of(logits, temperature=1.0, top_k=2)[0]).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("temperature", [0.2, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 30])
@pytest.mark.parametrize(("top_p", "min_p"), [(0.9, 0.0), (0.3, 0.0), (1.0, 0.1), (0.8, 0.05), (1e-6, 0.0)])
def test_the_filters_keep_what_sorting_keeps(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    """Only a token at which the mass or ratio meets the bound to 1 part in 10,000 may be kept or not."""
    logits = random_logits(16, 700)
    weights = weights_of(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    decided = 0
    for row, weight in zip(logits, weights, strict=True):
        fewest = by_sorting(row, temperature, top_k, top_p * (1 - 1e-4), min(min_p * (1 + 1e-4), 1.0))
        most = by_sorting(row, temperature, top_k, min(top_p * (1 + 1e-4), 1.0), min_p * (1 - 1e-4))
        drawable = set(np.flatnonzero((row - row.max()) / temperature > -16.6).tolist())
        got = set(np.flatnonzero(weight).tolist())
        assert fewest & drawable <= got <= most
        decided += fewest == most
    assert decided >= 8


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32))
    # Of the two that top_k keeps, the first has 0.57 of the mass; of all four it has 0.4.
    assert np.flatnonzero(weights_of(logits, temperature=1.0, top_k=2, top_p=0.5)[0]).tolist() == [0]
    assert np.flatnonzero(weights_of(logits, temperature=1.0, top_p=0.5)[0]).tolist() == [0, 1]


def test_temperature_comes_before_top_p() -> None:
    logits = np.log(np.array([[0.6, 0.3, 0.1]], np.float32))
    assert np.flatnonzero(weights_of(logits, temperature=1.0, top_p=0.59)[0]).tolist() == [0]
    assert np.flatnonzero(weights_of(logits, temperature=4.0, top_p=0.59)[0]).tolist() == [0, 1]


def test_ties_with_the_last_of_top_p_are_kept() -> None:
    logits = np.zeros((1, 300), np.float32)
    assert (weights_of(logits, temperature=1.0, top_p=0.01) == 1 << 24).all()


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.0},
        {"temperature": 0.5, "seed": 99},
        {"temperature": 1.5, "top_k": 12},
        {"temperature": 1.0, "top_p": 0.8, "seed": 1 << 40},
        {"temperature": 1.3, "top_k": 30, "top_p": 0.95, "min_p": 0.02, "seed": (1 << 63) - 1},
    ],
)
def test_samples_follow_the_distribution(fields: dict[str, Any]) -> None:
    row = random_logits(1, 60, seed=5, scale=1.5)
    count, size = 12_000, 1_000
    tokens = np.concatenate(
        [
            sample(np, np.repeat(row, size, 0), rows(size, positions=range(start, start + size), **fields))
            for start in range(0, count, size)
        ]
    )
    keep = sorted(by_sorting(row[0], **{"top_k": 0, "top_p": 1.0, "min_p": 0.0} | without_seed(fields)))
    p = np.exp(row[0].astype(np.float64)[keep] / fields["temperature"])
    p /= p.sum()
    observed = np.bincount(tokens, minlength=60)
    assert observed.sum() == observed[keep].sum(), "a token out of the kept set was sampled"
    many = p * count >= 5
    expected = np.append(p[many], p[~many].sum()) * count
    seen = np.append(observed[keep][many], observed[keep][~many].sum())
    expected, seen = expected[expected > 0], seen[expected > 0]
    chi2 = float(((seen - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    # Wilson and Hilferty's approximation of the 99.9 % quantile.
    assert chi2 < freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3


def pick(p: SamplingArrays, chosen: NDArray[np.int64]) -> SamplingArrays:
    return SamplingArrays(*(field[chosen] for field in p))


def without_seed(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "seed"}


def on_numpy(logits: Floats, p: SamplingArrays) -> list[int]:
    return [int(token) for token in sample(np, logits, p)]


def on_jax(logits: Floats, p: SamplingArrays) -> list[int]:
    return [int(token) for token in jitted(logits, p)]


# LLVM's optimization takes most of XLA's compile time and is not under test.
jitted = jax.jit(lambda logits, p: sample(jnp, logits, p), compiler_options={"xla_backend_optimization_level": 0})


def on_mlx(logits: Floats, p: SamplingArrays) -> list[int]:
    tokens: list[int] = sample(mx, mx.array(logits), SamplingArrays(*map(mx.array, p))).tolist()
    return tokens


@pytest.mark.parametrize(("other", "vocab"), [(on_jax, VOCAB), (on_mlx, VOCAB), (on_mlx, 1)])
def test_every_backend_samples_the_same_tokens(
    other: Callable[[Floats, SamplingArrays], list[int]], vocab: int
) -> None:
    logits, p = random_logits(15 * ROWS, vocab), random_parameters(15 * ROWS)
    batches = np.arange(15 * ROWS).reshape(15, ROWS)
    assert on_numpy(logits, p) == [token for rows in batches for token in other(logits[rows], pick(p, rows))]


RUNS = pytest.mark.parametrize("run", [on_numpy, on_jax, on_mlx])


@RUNS
def test_a_row_does_not_see_its_batch(run: Callable[[Floats, SamplingArrays], list[int]]) -> None:
    logits, p = random_logits(ROWS, VOCAB), random_parameters(ROWS, seed=8)
    whole = run(logits, p)
    order = np.random.default_rng(1).permutation(ROWS)
    assert run(logits[order], pick(p, order)) == [whole[row] for row in order]
    for row in (0, 3, 6):
        one = np.array([row])
        assert run(logits[one], pick(p, one)) == [whole[row]]


def test_without_filters_the_tokens_are_the_same() -> None:
    logits, p = random_logits(200, 3000), rows(200, temperature=0.9, seed=4)
    assert (sample(np, logits, p, filters=False) == sample(np, logits, p)).all()


@pytest.mark.parametrize("xp", [np, mx])
def test_a_top_p_of_one_keeps_tokens_below_the_rounding_of_the_mass(xp: Any) -> None:
    logits = np.array([[0.0, -16.63]], np.float32)  # 2**24 and 1: their sum is no float32
    p = SamplingArrays(*map(xp.array, rows(1, temperature=1.0)))
    weights = np.asarray(filtered_weights(xp, xp.array(logits), p))
    assert weights[0, 0, :2].tolist() == [1 << 24, 1]


def test_greedy_is_the_smallest_id_among_the_highest_on_every_backend() -> None:
    logits = random_logits(20, 1000)
    logits[3, [40, 700, 999]] = 50.0
    logits[4] = 7.0
    expected = logits.argmax(1).tolist()
    assert expected[3:5] == [40, 0]
    assert greedy(np, logits).tolist() == expected
    assert greedy(mx, mx.array(logits)).tolist() == expected
    assert jax.jit(lambda x: greedy(jnp, x))(logits).tolist() == expected


@RUNS
def test_temperature_0_is_greedy_and_so_is_the_limit(run: Callable[[Floats, SamplingArrays], list[int]]) -> None:
    logits = random_logits(ROWS, VOCAB)
    logits[3, [40, 700, 999]] = 50.0
    assert run(logits, rows(ROWS, temperature=0.0, top_k=3, top_p=0.5)) == logits.argmax(1).tolist()
    assert run(logits, rows(ROWS, temperature=1.0, top_k=1)) == logits.argmax(1).tolist()
    logits[3, [700, 999]] = 0.0
    for fields in ({"temperature": 1e-30}, {"temperature": 1.0, "top_p": 1e-9}, {"temperature": 1.0, "min_p": 1.0}):
        assert run(logits, rows(ROWS, **fields)) == logits.argmax(1).tolist()


@RUNS
def test_a_row_without_a_finite_maximum_gets_minus_one(
    run: Callable[[Floats, SamplingArrays], list[int]],
) -> None:
    logits = random_logits(ROWS, VOCAB)
    logits[1] = -np.inf
    logits[2, 7] = np.inf
    logits[3, 250] = np.nan
    logits[4] = np.nan
    good = [True, False, False, False, False] + [True] * (ROWS - 5)
    for fields in ({"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 5, "top_p": 0.9}):
        tokens = run(logits, rows(ROWS, **fields))
        assert [token >= 0 for token in tokens] == good
        assert max(tokens) < VOCAB


def test_minus_infinity_is_never_sampled() -> None:
    logits = np.full((500, 300), -np.inf, np.float32)
    logits[:, [17, 200]] = -1000.0
    for fields in ({"temperature": 100.0}, {"temperature": 1.0, "top_k": 50, "top_p": 0.99}):
        assert set(sample(np, logits, rows(500, **fields)).tolist()) == {17, 200}


@pytest.mark.parametrize("between", [1, BLOCK, GROUP * BLOCK], ids=["lanes", "blocks", "groups"])
@pytest.mark.parametrize(
    ("point", "token"), [(0, 0), ((1 << 31) - 1, 0), (1 << 31, 1), ((1 << 32) - 1, 1)], ids=["0", "0.4", "0.5", "0.9"]
)
def test_a_token_has_the_points_from_the_end_of_the_one_before(point: int, token: int, between: int) -> None:
    """Two equally likely tokens, with filtered tokens before, between and after them."""
    tokens = np.array([3, 3 + between])
    weights = np.zeros((1, 2 * GROUP, BLOCK), np.uint32)
    weights.reshape(-1)[tokens] = 1
    bits = np.array([point], np.uint32)
    sampled = sample_at(np, weights.sum(2, dtype=np.uint32), lambda block: take(np, weights, block), bits)
    assert sampled.tolist() == [tokens[token]]


def test_a_huge_temperature_samples_from_all_tokens() -> None:
    logits = random_logits(2000, 40, scale=0.1)
    counts = np.bincount(sample(np, logits, rows(2000, temperature=100.0)), minlength=40)
    assert counts.min() >= 25


def test_extreme_logits_stay_in_range() -> None:
    logits = np.array([[-3e38, 3e37, 0.0, 1e-40], [1e-45, 0.0, -0.0, -1e-45]], np.float32)
    for temperature in (1e-6, 1.0, 100.0):
        tokens = sample(np, logits, rows(2, temperature=temperature, top_k=3, top_p=0.9, min_p=0.1))
        assert tokens[0] == 1
        assert 0 <= tokens[1] < 4


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_most_likely_token_is_kept_and_only_what_is_kept_is_sampled(data: st.DataObject) -> None:
    floats = st.floats(-50, 50, width=32)
    row = np.array([data.draw(st.lists(floats, min_size=1, max_size=300))], np.float32)
    fields = {
        "temperature": data.draw(st.floats(0.01, 100)),
        "top_k": data.draw(st.integers(0, 310)),
        "top_p": data.draw(st.floats(0, 1, exclude_min=True)),
        "min_p": data.draw(st.floats(0, 1)),
        "seed": data.draw(st.integers(0, (1 << 63) - 1)),
    }
    weights = weights_of(row, **fields)[0]
    assert weights[row[0].argmax()] == 1 << 24
    token = int(sample(np, row, rows(1, positions=[data.draw(st.integers(0, 1 << 20))], **fields))[0])
    assert weights[token] > 0


def test_needs_sampling_and_needs_filters() -> None:
    plain, top_one, cold = Sampling(temperature=1.0), Sampling(temperature=1.0, top_k=1), Sampling(top_p=0.5)
    assert not needs_sampling([SampleSpec(cold, 1), SampleSpec(top_one, 1)])
    assert needs_sampling([SampleSpec(cold, 1), SampleSpec(plain, 1)])
    assert not needs_filters([SampleSpec(cold, 1), SampleSpec(plain, 1)])
    for filtered in (top_one, Sampling(temperature=1.0, top_p=0.9), Sampling(temperature=1.0, min_p=0.1)):
        assert needs_filters([SampleSpec(plain, 1), SampleSpec(filtered, 1)])


def test_parameters_split_the_seed() -> None:
    p = sampling_arrays([SampleSpec(Sampling(0.5, 3, 0.9, 0.1, (5 << 32) + 7, xtc_threshold=0.25), 11)])
    common = [[0.5], [3], [np.float32(0.9)], [np.float32(0.1)], [7], [5], [11]]
    assert [value.tolist() for value in p] == [*common, [1.0], [0.0], [0.25]]
    assert [value.tolist() for value in p.common.given] == common


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-39, 1e-7])
def test_parameters_have_no_temperature_that_a_device_may_take_for_0(temperature: float) -> None:
    p = sampling_arrays([SampleSpec(Sampling(temperature), 1), SampleSpec(Sampling(), 1)])
    assert p.temperature.tolist() == [np.float32(ratios.MIN_TEMPERATURE), 0.0]
