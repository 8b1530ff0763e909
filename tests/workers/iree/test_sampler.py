"""Whatever graphs are ready, the tokens and the reports are the same; numpy stands in for the device."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from protocol.request import Bias, Sampling
from workers.engine.logits_processors import AllowedTokens, LogitsProcessors
from workers.engine.request import EngineRequest
from workers.iree.sampler import Sampler
from workers.sampling.logit_edits import apply_edits, apply_mask
from workers.sampling.logprobs import report
from workers.sampling.sample import greedy, sample
from workers.sampling.sample_spec import SampleSpec
from workers.sampling.sampling_arrays import SamplingArrays, sampling_arrays
from workers.sampling.top_candidates import UNDECIDED, sample_top_candidates

VOCAB = 5000
LOGITS = (np.random.default_rng(0).standard_normal((4, VOCAB)) * 2).astype(np.float32)
WIDE = Sampling(temperature=1.0, top_k=4000, seed=3)
CLOSE = Sampling(temperature=0.7, top_k=20, top_p=0.9, seed=5)
RARE = Sampling(temperature=1.0, typical_p=0.7, xtc_probability=0.5, xtc_threshold=0.01, seed=8)
ALL = ("unfiltered", "narrow", "filter", "full", "edit", "mask", "report")
CPU = ("sample", "edit", "mask", "report")


class Numpy:
    """A device, its graphs and the calls of them, of which some kinds are ready, for some numbers of rows."""

    def __init__(self, ready: tuple[str, ...], sizes: tuple[int, ...]) -> None:
        self.ready = ready
        self.sizes = sizes
        self.called: list[str] = []

    def upload(self, array: Any) -> Any:
        return np.array(array)

    def numbers(self, array: Any) -> list[int]:
        numbers: list[int] = array.tolist()
        return numbers

    def download(self, array: Any) -> Any:
        return np.array(array)

    def covering(self, kind: str, sizes: tuple[int, ...], needed: int) -> int | None:
        return next((size for size in self.sizes if size >= needed and kind in self.ready), None)

    def __contains__(self, name: str) -> bool:
        return name in self.ready

    def call(self, name: str, *arguments: Any) -> Any:
        kind, _, size = name.partition("_")
        assert kind in self.ready
        assert not size or [len(array) for array in arguments] == [int(size)] * len(arguments)
        self.called.append(name)
        match kind:
            case "sample":
                logits, words = arguments
                kinds = [field.dtype for field in sampling_arrays([SampleSpec(Sampling(), 0)])]
                arrays = SamplingArrays(*(words[:, i].copy().view(kind) for i, kind in enumerate(kinds)))
                return [sample(np, logits, arrays)]
            case "narrow":
                return [sample_top_candidates(np, arguments[0], SamplingArrays(*arguments[1:]))]
            case "report":
                return report(np, *arguments)
            case "mask":
                return [apply_mask(np, *arguments)]
            case "edit":  # in place, as on the device
                arguments[0][...] = apply_edits(np, *arguments)
                return [arguments[0]]
        return [sample(np, arguments[0], SamplingArrays(*arguments[1:]), filters=kind != "unfiltered")]


def make(*ready: str, sizes: tuple[int, ...] = (1, 2, 4)) -> tuple[Sampler, Numpy]:
    device: Any = Numpy(ready, sizes)
    plan: Any = SimpleNamespace(config=SimpleNamespace(vocab_size=VOCAB), sample_sizes=sizes, draft_rows=0)
    return Sampler(device, device, device.call, plan), device


def result() -> list[Any]:
    return [greedy(np, LOGITS), LOGITS.copy()]


@pytest.mark.parametrize("ready", [(), ("narrow",), ("narrow", "filter"), ("filter",), ALL, CPU], ids="-".join)
def test_filters_give_the_same_tokens(ready: tuple[str, ...]) -> None:
    specs = [SampleSpec(CLOSE, 7), None, SampleSpec(WIDE, 9), SampleSpec(Sampling(), 4)]
    expected = [
        int(sample(np, LOGITS[row : row + 1], sampling_arrays([spec]))[0]) for row, spec in enumerate(specs) if spec
    ]
    assert sample_top_candidates(np, LOGITS[2:3], sampling_arrays([specs[2]])).tolist() == [UNDECIDED]  # type: ignore[list-item]
    sampler, device = make(*ready)
    assert sampler.sample(result(), specs, [0, 2, 3]) == expected
    assert ("filter_4" in device.called) == ("filter" in ready)
    assert device.called == ["sample"] or "sample" not in ready
    assert sampler.sample(result(), [specs[0], None, None, specs[3]], [3, 0]) == [expected[2], expected[0]]
    assert device.called.count("filter_4") <= 1 or "narrow" not in ready  # what is decided is sampled once


@pytest.mark.parametrize("ready", [(), ("narrow", "filter"), ALL, CPU], ids="-".join)
def test_rare_filters_give_the_same_tokens_beside_other_rows(ready: tuple[str, ...]) -> None:
    specs = [SampleSpec(CLOSE, 7), SampleSpec(RARE, 8), SampleSpec(WIDE, 9), SampleSpec(Sampling(), 4)]
    expected = [int(sample(np, LOGITS[row : row + 1], sampling_arrays([spec]))[0]) for row, spec in enumerate(specs)]
    sampler, device = make(*ready)
    assert sampler.sample(result(), specs, range(4)) == expected
    kinds = [name.partition("_")[0] for name in device.called]
    assert kinds == [kind for kind in ("sample", "full") if kind in ready]
    assert sampler.sample(result(), [specs[0], None, None, specs[3]], [3, 0]) == [expected[3], expected[0]]
    assert "full_4" not in device.called[1:], "other rows do not pay for it"


@pytest.mark.parametrize("ready", [(), ALL, CPU], ids="-".join)
@pytest.mark.parametrize("sizes", [(1, 2, 4), (4,), (1, 2)], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_larger_graph_samples_the_same_tokens(ready: tuple[str, ...], sizes: tuple[int, ...], rows: int) -> None:
    """Before the exact one is there, and where there is none."""
    edited = LogitsProcessors.of(EngineRequest(1, (1, 2, 3), Sampling(presence_penalty=0.5)))
    assert edited is not None
    specs = [
        SampleSpec(CLOSE, 7),
        edited.sample_spec(structs.replace(WIDE, logprobs=2), 9),
        SampleSpec(Sampling(), 4),
        SampleSpec(CLOSE, 8),
    ]
    expected, _ = make()
    sampler, device = make(*ready, sizes=sizes)
    given = [greedy(np, LOGITS[:rows]), LOGITS[:rows].copy()]
    tokens = sampler.sample(given, specs[:rows], range(rows))
    assert tokens == expected.sample(given, specs[:rows], range(rows))
    assert sampler.logprobs(range(rows)) == expected.logprobs(range(rows))
    fitting = [size for size in sizes if size >= rows]
    assert {name.partition("_")[2] for name in device.called} <= {"", *map(str, fitting[:1])}
    assert ("report" in ready and bool(fitting)) == any(name.startswith("report") for name in device.called)


@pytest.mark.parametrize("ready", [(), ("unfiltered", "edit", "mask"), ALL, CPU], ids="-".join)
def test_changed_logits_give_the_same_tokens_and_reported_as_they_were(ready: tuple[str, ...]) -> None:
    sampling = Sampling(repetition_penalty=1.5, logit_bias=(Bias(4, 30.0),), logprobs=1)
    processors = LogitsProcessors.of(EngineRequest(1, (1, 2, 3), sampling))
    free = LogitsProcessors.of(EngineRequest(2, (1,), constraint=AllowedTokens([77], VOCAB)))
    assert processors is not None
    assert free is not None
    sampler, _ = make(*ready)
    specs = [processors.sample_spec(sampling, 4), None, SampleSpec(Sampling(logprobs=0), 5), None]
    best = LOGITS.argmax(1).tolist()
    assert sampler.sample(result(), specs, [2, 0]) == [best[2], 4]
    reports = sampler.logprobs([1, 0])
    assert [each.tokens[0] for each in reports] == [best[0], best[2]]
    assert reports[0].logprob < reports[0].logprobs[0]
    assert sampler.sample(result(), [specs[0], free.sample_spec(Sampling(), 3), None, None], [0, 1]) == [4, 77]


def test_greedy_rows_take_what_the_step_brought() -> None:
    sampler, device = make(*ALL)
    assert sampler.sample(result(), [None, SampleSpec(Sampling(), 1), None, None], [1]) == [int(LOGITS[1].argmax())]
    assert device.called == []


def test_a_non_finite_row_fails_only_where_it_is_sampled() -> None:
    sampler, _ = make()
    broken = [np.array([3, -1, 5, 6]), LOGITS.copy()]
    assert sampler.sample(broken, [SampleSpec(Sampling(), 1), None, None, None], [0]) == [3]
    assert sampler.sample(broken, [None, SampleSpec(Sampling(), 1), SampleSpec(Sampling(), 1), None], [2, 1]) == [
        5,
        None,
    ]


@pytest.mark.parametrize("ready", [(), ALL, CPU], ids="-".join)
@pytest.mark.parametrize("sampling", [Sampling(temperature=1.0, seed=3), CLOSE], ids=["free", "filtered"])
def test_rows_beside_a_non_finite_one_are_sampled_and_reported_as_without_it(
    ready: tuple[str, ...], sampling: Sampling
) -> None:
    broken = LOGITS.copy()
    broken[1, 77] = np.nan
    specs = [SampleSpec(structs.replace(sampling, logprobs=1), 7 + row) for row in range(4)]
    whole, _ = make(*ready)
    expected = whole.sample(result(), specs, range(4))
    sampler, _ = make(*ready)
    assert sampler.sample([greedy(np, broken), broken], specs, range(4)) == [expected[0], None, *expected[2:]]
    assert sampler.logprobs([0, 3]) == whole.logprobs([0, 3])


@pytest.mark.parametrize("ready", [(), CPU], ids="-".join)
@pytest.mark.parametrize("bits", [0x7F800001, 0x7F800000, 0x7F7FFFFF], ids=["signalling", "infinite", "largest"])
def test_nobodys_rows_may_hold_anything(ready: tuple[str, ...], bits: int) -> None:
    changed = LogitsProcessors.of(EngineRequest(1, (1, 2, 3), Sampling(presence_penalty=0.5)))
    assert changed is not None
    specs = [changed.sample_spec(CLOSE, 7), changed.sample_spec(WIDE, 9), None]
    logits = LOGITS[:3].copy()
    expected = make(*ready)[0].sample([greedy(np, logits), logits], specs, [0, 1])
    logits.view(np.uint32)[2] = bits
    assert make(*ready)[0].sample([greedy(np, LOGITS[:3]), logits], specs, [0, 1]) == expected


def test_nothing_is_reported_of_a_step_that_is_over() -> None:
    sampler, _ = make(*ALL)
    sampler.sample(result(), [SampleSpec(Sampling(), 1), None, None, None], [0])
    sampler.forget()
    with pytest.raises(RuntimeError, match="no token was sampled"):
        sampler.logprobs([0])
