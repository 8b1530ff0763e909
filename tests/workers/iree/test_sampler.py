"""Whatever graphs are ready, the tokens and the reports are the same; numpy stands in for the device."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from protocol.request import Bias, Sampling
from workers.engine.logits_processors import AllowedTokens, Shaping
from workers.engine.request import Request
from workers.engine.runner import Draw
from workers.iree.sampler import Sampler
from workers.sampling.logit_edits import edited, masked
from workers.sampling.logprobs import report
from workers.sampling.sample import greedy, parameters, sample
from workers.sampling.top_candidates import UNDECIDED, narrow

VOCAB = 5000
LOGITS = (np.random.default_rng(0).standard_normal((4, VOCAB)) * 2).astype(np.float32)
WIDE = Sampling(temperature=1.0, top_k=4000, seed=3)
CLOSE = Sampling(temperature=0.7, top_k=20, top_p=0.9, seed=5)
ALL = ("draw", "narrow", "filter", "edit", "mask", "report")
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

    def call(self, name: str, *arguments: Any) -> Any:
        kind, _, size = name.partition("_")
        assert kind in self.ready
        assert not size or [len(array) for array in arguments] == [int(size)] * len(arguments)
        self.called.append(name)
        match kind:
            case "sample":
                logits, words = arguments
                kinds = [field.dtype for field in parameters([Draw(Sampling(), 0)])]
                return [sample(np, logits, *(words[:, i].copy().view(kind) for i, kind in enumerate(kinds)))]
            case "narrow":
                return [narrow(np, *arguments)]
            case "report":
                return report(np, *arguments)
            case "mask":
                return [masked(np, *arguments)]
            case "edit":  # in place, as on the device
                arguments[0][...] = edited(np, *arguments)
                return [arguments[0]]
        return [sample(np, *arguments, filters=kind == "filter")]


def make(*ready: str, sizes: tuple[int, ...] = (1, 2, 4)) -> tuple[Sampler, Numpy]:
    device: Any = Numpy(ready, sizes)
    required = [(kind,) for kind in ready if kind == "sample"]
    plan: Any = SimpleNamespace(config=SimpleNamespace(vocab_size=VOCAB), sample_sizes=sizes, required=lambda: required)
    return Sampler(device, device, device.call, plan), device


def result() -> list[Any]:
    return [greedy(np, LOGITS), LOGITS.copy()]


@pytest.mark.parametrize("ready", [(), ("narrow",), ("narrow", "filter"), ("filter",), ALL, CPU], ids="-".join)
def test_filters_are_drawn_alike(ready: tuple[str, ...]) -> None:
    draws = [Draw(CLOSE, 7), None, Draw(WIDE, 9), Draw(Sampling(), 4)]
    expected = [
        int(sample(np, LOGITS[row : row + 1], *parameters([draw]))[0]) for row, draw in enumerate(draws) if draw
    ]
    assert narrow(np, LOGITS[2:3], *parameters([draws[2]])).tolist() == [UNDECIDED]  # type: ignore[list-item]
    drawing, device = make(*ready)
    assert drawing.draw(result(), draws, [0, 2, 3]) == expected
    assert ("filter_4" in device.called) == ("filter" in ready)
    assert device.called == ["sample"] or "sample" not in ready
    assert drawing.draw(result(), [draws[0], None, None, draws[3]], [3, 0]) == [expected[2], expected[0]]
    assert device.called.count("filter_4") <= 1 or "narrow" not in ready  # what is decided is drawn once


@pytest.mark.parametrize("ready", [(), ALL, CPU], ids="-".join)
@pytest.mark.parametrize("sizes", [(1, 2, 4), (4,), (1, 2)], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_larger_graph_draws_alike(ready: tuple[str, ...], sizes: tuple[int, ...], rows: int) -> None:
    """Before the exact one is there, and where there is none."""
    edited = Shaping.of(Request(1, (1, 2, 3), Sampling(presence_penalty=0.5)))
    assert edited is not None
    draws = [Draw(CLOSE, 7), edited.draw(structs.replace(WIDE, logprobs=2), 9), Draw(Sampling(), 4), Draw(CLOSE, 8)]
    expected, _ = make()
    drawing, device = make(*ready, sizes=sizes)
    given = [greedy(np, LOGITS[:rows]), LOGITS[:rows].copy()]
    tokens = drawing.draw(given, draws[:rows], range(rows))
    assert tokens == expected.draw(given, draws[:rows], range(rows))
    assert drawing.logprobs(range(rows)) == expected.logprobs(range(rows))
    fitting = [size for size in sizes if size >= rows]
    assert {name.partition("_")[2] for name in device.called} <= {"", *map(str, fitting[:1])}
    assert ("report" in ready and bool(fitting)) == any(name.startswith("report") for name in device.called)


@pytest.mark.parametrize("ready", [(), ("draw", "edit", "mask"), ALL, CPU], ids="-".join)
def test_changed_logits_are_drawn_alike_and_reported_as_they_were(ready: tuple[str, ...]) -> None:
    sampling = Sampling(repetition_penalty=1.5, logit_bias=(Bias(4, 30.0),), logprobs=1)
    shaping = Shaping.of(Request(1, (1, 2, 3), sampling))
    free = Shaping.of(Request(2, (1,), constraint=lambda: AllowedTokens([77], VOCAB)))
    assert shaping is not None
    assert free is not None
    drawing, _ = make(*ready)
    draws = [shaping.draw(sampling, 4), None, Draw(Sampling(logprobs=0), 5), None]
    best = LOGITS.argmax(1).tolist()
    assert drawing.draw(result(), draws, [2, 0]) == [best[2], 4]
    reports = drawing.logprobs([1, 0])
    assert [each.tokens[0] for each in reports] == [best[0], best[2]]
    assert reports[0].logprob < reports[0].logprobs[0]
    assert drawing.draw(result(), [draws[0], free.draw(Sampling(), 3), None, None], [0, 1]) == [4, 77]


def test_greedy_rows_take_what_the_step_brought() -> None:
    drawing, device = make(*ALL)
    assert drawing.draw(result(), [None, Draw(Sampling(), 1), None, None], [1]) == [int(LOGITS[1].argmax())]
    assert device.called == []


def test_what_is_no_number_fails_where_it_is_drawn() -> None:
    drawing, _ = make()
    broken = [np.array([3, -1, 5, 6]), LOGITS.copy()]
    assert drawing.draw(broken, [Draw(Sampling(), 1), None, None, None], [0]) == [3]
    assert drawing.draw(broken, [None, Draw(Sampling(), 1), Draw(Sampling(), 1), None], [2, 1]) == [5, None]


@pytest.mark.parametrize("ready", [(), ALL, CPU], ids="-".join)
@pytest.mark.parametrize("sampling", [Sampling(temperature=1.0, seed=3), CLOSE], ids=["free", "filtered"])
def test_rows_beside_one_that_is_no_number_are_drawn_and_reported_alike(
    ready: tuple[str, ...], sampling: Sampling
) -> None:
    broken = LOGITS.copy()
    broken[1, 77] = np.nan
    draws = [Draw(structs.replace(sampling, logprobs=1), 7 + row) for row in range(4)]
    whole, _ = make(*ready)
    expected = whole.draw(result(), draws, range(4))
    drawing, _ = make(*ready)
    assert drawing.draw([greedy(np, broken), broken], draws, range(4)) == [expected[0], None, *expected[2:]]
    assert drawing.logprobs([0, 3]) == whole.logprobs([0, 3])


@pytest.mark.parametrize("ready", [(), CPU], ids="-".join)
@pytest.mark.parametrize("bits", [0x7F800001, 0x7F800000, 0x7F7FFFFF], ids=["signalling", "infinite", "largest"])
def test_nobodys_rows_may_hold_anything(ready: tuple[str, ...], bits: int) -> None:
    changed = Shaping.of(Request(1, (1, 2, 3), Sampling(presence_penalty=0.5)))
    assert changed is not None
    draws = [changed.draw(CLOSE, 7), changed.draw(WIDE, 9), None]
    logits = LOGITS[:3].copy()
    expected = make(*ready)[0].draw([greedy(np, logits), logits], draws, [0, 1])
    logits.view(np.uint32)[2] = bits
    assert make(*ready)[0].draw([greedy(np, LOGITS[:3]), logits], draws, [0, 1]) == expected


def test_nothing_is_reported_of_a_step_that_is_over() -> None:
    drawing, _ = make(*ALL)
    drawing.draw(result(), [Draw(Sampling(), 1), None, None, None], [0])
    drawing.forget()
    with pytest.raises(RuntimeError, match="no token was drawn"):
        drawing.logprobs([0])
