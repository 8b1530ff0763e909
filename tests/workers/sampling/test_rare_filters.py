"""typical_p and XTC: against the plain definition, by their distribution, and at their edges."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.request import Sampling
from tests.workers.sampling.plain_sampling import kept
from workers.sampling.filters import excludes, filter_weights, information_of
from workers.sampling.fixed_point import FAR, OCTAVE, distances, weights_of
from workers.sampling.sample import needs_filters, needs_rare_filters, sample
from workers.sampling.sample_spec import SampleSpec
from workers.sampling.sampling_arrays import SamplingArrays, sampling_arrays
from workers.sampling.vocabulary_blocks import best_of, blocks_of

Floats = NDArray[np.float32]
FILTERS = ("top_k", "typical_p", "top_p", "min_p")


def random_logits(count: int, vocab: int, seed: int = 0, scale: float = 3.0) -> Floats:
    return (np.random.default_rng(seed).standard_normal((count, vocab)) * scale).astype(np.float32)


def rows(count: int, start: int = 0, **fields: Any) -> SamplingArrays:
    return sampling_arrays([SampleSpec(Sampling(**fields), start + row) for row in range(count)])


def kept_ids(logits: Floats, **fields: Any) -> list[set[int]]:
    blocks = blocks_of(np, logits)
    weights = filter_weights(np, distances(np, blocks, best_of(np, blocks)[1]), rows(len(logits), **fields))
    return [set(np.flatnonzero(row[: logits.shape[1]]).tolist()) for row in weights.reshape(len(logits), -1)]


def of_probabilities(*probabilities: float) -> Floats:
    return np.log(np.array([probabilities], np.float32))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("typical_p", [0.05, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(
    "others", [{}, {"top_k": 30}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 200, "top_p": 0.9, "min_p": 0.01}], ids=str
)
def test_typical_p_keeps_what_sorting_keeps(temperature: float, typical_p: float, others: dict[str, Any]) -> None:
    """A row in which a bound is met to 1 part in 10,000 is not compared: a token more or less may be kept."""
    logits = random_logits(30, 250, seed=int(1000 * typical_p))
    fields = {"temperature": temperature, "typical_p": typical_p} | others
    decided = 0
    for row, got in zip(logits, kept_ids(logits, **fields), strict=True):
        around = [
            kept(row, **fields | {name: min(1.0, fields[name] * factor) for name in FILTERS[1:] if name in fields})
            for factor in (0.9999, 1.0, 1.0001)
        ]
        if around[0] == around[1] == around[2]:
            assert got == around[1]
            decided += 1
    assert decided >= 5


def test_typical_p_may_leave_out_the_most_likely_token() -> None:
    logits = of_probabilities(0.4, 0.15, 0.15, 0.15, 0.15)
    assert kept_ids(logits, temperature=1.0, typical_p=0.5) == [{1, 2, 3, 4}]
    assert kept_ids(logits, temperature=1.0, typical_p=0.9) == [{0, 1, 2, 3, 4}]
    assert kept_ids(logits, temperature=1.0, typical_p=0.5, min_p=1.0) == [{1, 2, 3, 4}], "relative to what is left"
    assert kept_ids(logits, temperature=1.0, typical_p=0.5, top_p=1e-30) == [{1, 2, 3, 4}]


@pytest.mark.parametrize("typical_p", [5e-324, 1e-30, 1e-9])
def test_the_smallest_typical_p_keeps_a_token(typical_p: float) -> None:
    logits = random_logits(50, 300)
    logits[0, 1:] = -np.inf
    found = kept_ids(logits, temperature=1.0, typical_p=typical_p, top_p=1e-38, min_p=1.0)
    assert [len(ids) for ids in found] == [1] * 50
    assert found[0] == {0}


def test_top_k_comes_before_typical_p() -> None:
    logits = of_probabilities(0.4, 0.3, *[0.003] * 100)
    assert kept_ids(logits, temperature=1.0, typical_p=0.3) == [{1}]
    assert kept_ids(logits, temperature=1.0, typical_p=0.3, top_k=2) == [{0}]
    assert kept_ids(logits, temperature=1.0, typical_p=0.6, top_k=2) == [{0, 1}]
    assert kept_ids(logits, temperature=1.0, top_k=2, typical_p=1.0) == [{0, 1}]


@pytest.mark.parametrize("threshold", [0.01, 0.05, 0.1, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("others", [{}, {"top_k": 12}, {"top_p": 0.7}, {"min_p": 0.2}, {"typical_p": 0.8}], ids=str)
def test_xtc_keeps_what_sorting_keeps(threshold: float, others: dict[str, Any]) -> None:
    logits = random_logits(60, 300, scale=2.0)
    fields = {"temperature": 1.0} | others
    found = kept_ids(logits, **fields, xtc_probability=1.0, xtc_threshold=threshold)
    decided = 0
    for row, got in zip(logits, found, strict=True):
        bounds = {name: value for name, value in fields.items() if name in FILTERS[1:]}
        around = [
            kept(
                row,
                **fields | {name: min(1.0, value * factor) for name, value in bounds.items()},
                xtc_threshold=threshold * factor,
            )
            for factor in (0.9999, 1.0, 1.0001)
        ]
        if around[0] == around[1] == around[2]:
            assert got == around[1]
            decided += 1
    assert decided >= 30


def test_xtc_excludes_all_top_choices_but_the_least_likely() -> None:
    logits = of_probabilities(0.4, 0.25, 0.2, 0.1, 0.05)
    always: dict[str, Any] = {"temperature": 1.0, "xtc_probability": 1.0}
    assert kept_ids(logits, **always, xtc_threshold=0.15) == [{2, 3, 4}]
    assert kept_ids(logits, **always, xtc_threshold=0.3) == [{0, 1, 2, 3, 4}], "one top choice stays"
    assert kept_ids(logits, **always, xtc_threshold=0.5) == [{0, 1, 2, 3, 4}], "there is none"
    assert kept_ids(logits, **always, xtc_threshold=0.0) == [{4}]
    assert kept_ids(logits, temperature=1.0, xtc_probability=0.0, xtc_threshold=0.0) == [{0, 1, 2, 3, 4}]
    assert kept_ids(of_probabilities(0.3, 0.3, 0.2, 0.2), **always, xtc_threshold=0.1) == [{2, 3}], "with its ties"


def test_xtc_is_the_last_filter() -> None:
    logits = of_probabilities(0.4, 0.25, 0.2, 0.1, 0.05)
    always: dict[str, Any] = {"temperature": 1.0, "xtc_probability": 1.0}
    # Of the mass that the others leave, even the third has over 0.2.
    assert kept_ids(logits, **always, xtc_threshold=0.21, top_k=3) == [{2}]
    assert kept_ids(logits, **always, xtc_threshold=0.21, top_p=0.8) == [{2}]
    assert kept_ids(logits, **always, xtc_threshold=0.21, min_p=0.45) == [{2}]


@pytest.mark.parametrize("probability", [0.0, 2.0**-24, 0.1, 0.5, 0.9, 1.0])
def test_the_coin_of_xtc_has_its_probability(probability: float) -> None:
    count = 40_000
    fell = excludes(np, rows(count, xtc_probability=probability, seed=3))
    assert abs(int(fell.sum()) - probability * count) <= 3.3 * (probability * (1 - probability) * count) ** 0.5 + 1e-6
    other = excludes(np, rows(count, xtc_probability=probability, seed=4))
    assert probability in (0.0, 2.0**-24, 1.0) or (fell != other).any()


def test_the_coin_does_not_depend_on_the_token_that_is_sampled() -> None:
    """Noise of one stream for both would sample only some of the tokens whenever the coin falls."""
    count = 8_000
    p = rows(count, temperature=1.0, xtc_probability=0.5, xtc_threshold=0.3, seed=11)
    logits = np.repeat(of_probabilities(0.31, 0.3, 0.1, 0.1, 0.1, 0.09), count, 0)
    tokens = sample(np, logits, p)
    fell = excludes(np, p)
    for coin, shares in ((True, (0.0, 0.3, 0.1, 0.1, 0.1, 0.09)), (False, (0.31, 0.3, 0.1, 0.1, 0.1, 0.09))):
        seen = np.bincount(tokens[fell == coin], minlength=6)
        expected = np.array(shares) / sum(shares) * seen.sum()
        some = expected > 0
        assert seen[~some].sum() == 0
        assert float(((seen[some] - expected[some]) ** 2 / expected[some]).sum()) < 20.5, "99.9 % for 5 degrees"


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.0, "typical_p": 0.7},
        {"temperature": 1.4, "typical_p": 0.9, "top_k": 40, "seed": 9},
        {"temperature": 0.8, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.02, "seed": 1 << 50},
        {"temperature": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.05},
        {"temperature": 1.2, "xtc_probability": 0.3, "xtc_threshold": 0.03, "top_p": 0.95, "seed": 5},
        {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.05, "typical_p": 0.9, "seed": 6},
    ],
    ids=str,
)
def test_samples_follow_the_distribution(fields: dict[str, Any]) -> None:
    row = random_logits(1, 60, seed=5, scale=1.5)
    size, calls = 500, 16
    tokens = np.concatenate(
        [sample(np, np.repeat(row, size, 0), rows(size, start, **fields)) for start in range(0, size * calls, size)]
    )
    p = np.exp(row[0].astype(np.float64) / fields["temperature"])
    plain = {name: value for name, value in fields.items() if name in (*FILTERS, "temperature")}
    chance = fields.get("xtc_probability", 0.0)
    share = np.zeros(60)
    for weight, threshold in ((chance, fields.get("xtc_threshold")), (1 - chance, None)):
        ids = sorted(kept(row[0], **plain, xtc_threshold=threshold))
        share[ids] += weight * p[ids] / p[ids].sum()
    observed = np.bincount(tokens, minlength=60)
    assert observed[share == 0].sum() == 0, "a token out of the kept set was sampled"
    many = share * len(tokens) >= 5
    expected = np.append(share[many], share[~many].sum()) * len(tokens)
    seen = np.append(observed[many], observed[~many].sum())
    some = expected > 0
    chi2 = float(((seen[some] - expected[some]) ** 2 / expected[some]).sum())
    freedom = int(some.sum()) - 1
    # Wilson and Hilferty's approximation of the 99.9 % quantile.
    assert chi2 < freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3


def test_neutral_values_change_no_token() -> None:
    logits = random_logits(200, 3000)
    cases: list[dict[str, Any]] = [{}, {"top_k": 40, "top_p": 0.9}, {"min_p": 0.05}, {"top_p": 0.999}]
    for fields in cases:
        p = rows(200, temperature=0.9, seed=4, xtc_threshold=0.0, **fields)
        assert (sample(np, logits, p) == sample(np, logits, p.common)).all()


def test_a_greedy_row_has_no_filters() -> None:
    logits = random_logits(30, 500)
    always: dict[str, Any] = {"xtc_probability": 1.0, "xtc_threshold": 0.0, "typical_p": 1e-9}
    for greedy in ({"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}):
        assert sample(np, logits, rows(30, **always | greedy)).tolist() == logits.argmax(1).tolist()


def test_non_finite_rows_get_minus_one() -> None:
    logits = random_logits(4, 300)
    logits[0], logits[1, 7], logits[2, 9] = -np.inf, np.nan, np.inf
    p = rows(4, temperature=1.0, typical_p=0.5, xtc_probability=1.0)
    assert (sample(np, logits, p) >= 0).tolist() == [False, False, False, True]


def test_the_information_of_a_token_is_its_weight_times_its_steps() -> None:
    steps = np.arange(FAR + 1, dtype=np.uint32)
    weights = weights_of(np, steps)
    exact = weights.astype(np.float64) * steps / (1 << 15)
    found = information_of(weights, steps)
    assert found.dtype == np.uint32
    assert ((found <= exact) & (found > exact - 1.2)).all()
    assert 128 * int(found.max()) < 1 << 32, "a block's sum"
    assert int(found.argmax()) == pytest.approx(OCTAVE / np.log(2), rel=0.01)


def test_rows_that_need_the_rare_filters() -> None:
    rare = (Sampling(temperature=1.0, typical_p=0.9), Sampling(temperature=1.0, xtc_probability=0.1))
    for sampling in rare:
        specs = [SampleSpec(Sampling(temperature=1.0, top_p=0.9), 1), SampleSpec(sampling, 1)]
        assert needs_rare_filters(specs)
        assert needs_filters([SampleSpec(sampling, 1)])
    assert not needs_rare_filters([SampleSpec(Sampling(typical_p=0.9, xtc_probability=1.0), 1)])
    assert not needs_rare_filters([SampleSpec(Sampling(temperature=1.0, top_k=4, top_p=0.9, min_p=0.1), 1)])
