"""Whole models on AArch64, emulated: a row has the same bits however it is computed.

Each call of a graph is a process that takes a tenth of a second, so the tests compute few rows. `AARCH64_TESTS=all`
adds the whole gates of `tests.workers.iree.test_gate` for every target, which take two to twenty minutes each.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.gate import run_gate
from tests.workers.iree.aarch64.conftest import CPUS, emulated
from tests.workers.iree.conftest import Load, fetch_all
from tests.workers.iree.test_gate import GREEDY, SEEDED, TOKENS, LogitsSpy, check_logits, make_mixture
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.runner import IreeRunner
from workers.precision import CpuTarget, Quantize

LENGTH = 12
KINDS: tuple[Quantize, ...] = ("none", "int8", "int4")
ALL = [(target, kind) for target in CPUS for kind in KINDS]
whole = pytest.mark.skipif(os.environ.get("AARCH64_TESTS") != "all", reason="takes minutes: AARCH64_TESTS=all")


def loaded(load: Load, path: Path, patch: pytest.MonkeyPatch, target: CpuTarget, kind: Quantize) -> IreeRunner:
    """A runner whose graphs are emulated, with two threads."""
    patch.setattr("workers.iree.runner.Device", lambda uri, threads, cpu, pins: emulated(cpu, uri, threads))
    return load(path, dtype="bfloat16", quantize=kind, cpu=target, threads=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "kind"),
    [
        pytest.param("neon", "int4", marks=pytest.mark.exhaustive),
        pytest.param("neon-dotprod", "int8", marks=pytest.mark.exhaustive),
        pytest.param("neon-i8mm", "none", marks=pytest.mark.exhaustive),
    ],
)
def test_logits_are_bitwise_identical(
    load: Load, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, target: CpuTarget, kind: Quantize
) -> None:
    """Decoded alone and in company, where rows have other blocks and layers are one kernel, and prefilled."""
    runner = loaded(load, checkpoint, monkeypatch, target, kind)
    fetch_all(runner, "decode_1")
    spy = LogitsSpy(runner, monkeypatch)
    runner.prefill([Chunk(2, TOKENS[:LENGTH], 0, 0)], [SEEDED])
    expected = runner.logits(Chunk(7, TOKENS[:LENGTH], 0, 0))
    np.testing.assert_array_equal(spy.seen[0][0], expected[-1])
    for at, token in enumerate(TOKENS[:LENGTH]):
        others = [DecodeRow(slot, token, 0, 0, GREEDY) for slot in range(at % 7)]
        runner.decode([DecodeRow(7, token, at, at, GREEDY), *others])
        np.testing.assert_array_equal(spy.seen[-1][0], expected[at])
    runner.close()


@whole
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("target", "kind"), ALL)
def test_all_logits(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: CpuTarget, kind: Quantize
) -> None:
    runner = loaded(load, make_mixture(tmp_path / "model"), monkeypatch, target, kind)
    fetch_all(runner, "decode_1", "decode_4")
    check_logits(runner, monkeypatch)
    runner.close()


@whole
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("target", "kind"), ALL)
def test_gate(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: CpuTarget, kind: Quantize) -> None:
    runner = loaded(load, make_mixture(tmp_path / "model"), monkeypatch, target, kind)
    report = run_gate(lambda: runner, longest=40, requests=32)
    assert report.requests >= 32
    assert min(report.cancelled, report.resumed, report.stopped) > 0
