"""Batch invariance: the reference gate, and equal logits to the bit."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.request import Sampling
from tests.gate import run_gate
from tests.prefix_gate import run_prefix_gate
from tests.workers.iree.conftest import Load
from workers.iree.runner import IreeRunner
from workers.runner import Chunk, Draw, Row

GREEDY = Draw(Sampling(), 1)
TOKENS = tuple(int(token) for token in np.random.default_rng(3).integers(3, 500, 90))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gate(load: Load, dtype: str) -> None:
    report = run_gate(lambda: load(dtype=dtype))
    assert report.requests >= 32
    assert report.most_active == 8
    assert min(report.cancelled, report.resumed, report.stopped, report.full) > 0


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_rows_from_others_are_as_good_as_computed_ones(load: Load, dtype: str) -> None:
    report = run_prefix_gate(lambda: load(dtype=dtype))
    assert report.hits > report.requests // 2
    assert min(report.in_place, report.copies) > 0


class LogitsSpy:
    """Keeps the logits that the steps of a runner leave on the device."""

    def __init__(self, runner: IreeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[NDArray[np.float32]] = []
        call, download = runner._call, runner._device.download

        def spy(name: str, *arguments: Any) -> Any:
            result = call(name, *arguments)
            if name.startswith(("decode", "prefill")):
                self.seen.append(download(result[1]))
            return result

        monkeypatch.setattr(runner, "_call", spy)


def test_logits_are_equal_to_the_bit(runner: IreeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a row is computed: scored, prefilled in any chunks, decoded in any bucket, beside whatever neighbours."""
    expected = runner.logits(Chunk(7, TOKENS, 0, 0))
    spy = LogitsSpy(runner, monkeypatch)
    for length in (1, 20, 32, 33, 90):
        runner.reset(2)
        runner.prefill(Chunk(2, TOKENS[:length], 0, 0), GREEDY)
        np.testing.assert_array_equal(spy.seen[-1][0], expected[length - 1])
    for slot in (0, 1, 3, 7):  # the buckets 1, 2, 4 and 8
        runner.reset(slot)
        for at, token in enumerate(TOKENS[:40]):
            rows = [Row(slot, token, at, at, GREEDY)]
            if slot and at % 3:  # a neighbour comes and goes
                rows.append(Row(0, at, at % 3 - 1, at, GREEDY))
            runner.decode(rows)
            np.testing.assert_array_equal(spy.seen[-1][slot], expected[at])
    runner.reset(5)
    runner.prefill(Chunk(5, TOKENS[:37], 0, 0), GREEDY)
    runner.prefill(Chunk(5, TOKENS[37:41], 37, 37), None)
    runner.decode([Row(5, TOKENS[41], 41, 41, GREEDY)])
    np.testing.assert_array_equal(spy.seen[-1][5], expected[41])
