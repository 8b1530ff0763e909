"""The sampling kernels against the definition in numpy: the same tokens for any parameters."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.workers.sampling.test_top_candidates import make
from workers.iree.build.compiler import Compiler
from workers.iree.device.device import Device
from workers.iree.kernels.sampling.sample import sampling_module
from workers.sampling.sample import sample
from workers.sampling.sampling_arrays import SamplingArrays
from workers.sampling.top_candidates import CELLS, UNDECIDED, sample_top_candidates

Floats = NDArray[np.float32]
Run = Callable[[Floats, SamplingArrays], list[int]]


@pytest.fixture(scope="module")
def run(cache_dir: Path) -> Run:
    return sampling_on(Device("local-sync", 1), cache_dir)


def sampling_on(device: Device, cache_dir: Path) -> Run:
    """Return a function that samples on a device."""
    compiler = Compiler(cache_dir, device.compile_flags(), device.compile_target())

    def call(logits: Floats, p: SamplingArrays) -> list[int]:
        module = device.load(compiler.compile(sampling_module("sample", logits.shape[1])), None, "")
        words = np.stack([field.view(np.int32) for field in p], axis=1)
        (tokens,) = module.call("sample", device.upload(logits), device.upload(words))
        return list(device.download(tokens).tolist())

    return call


def off(p: SamplingArrays) -> SamplingArrays:
    """The parameters with typical_p and XTC, which are off."""
    ones = np.ones_like(p.top_p)
    return p._replace(typical_p=ones, xtc_probability=0 * ones, xtc_threshold=ones)


def rare(p: SamplingArrays) -> SamplingArrays:
    """The parameters with typical_p and XTC in most rows, beside some without."""
    r, rows = np.random.default_rng(7), len(p.top_p)
    return p._replace(
        typical_p=r.choice(np.array([1e-30, 0.2, 0.9, 1.0], np.float32), rows),
        xtc_probability=r.choice(np.array([0.0, 0.5, 1.0], np.float32), rows),
        xtc_threshold=r.choice(np.array([0.0, 0.05, 0.1, 0.5], np.float32), rows),
    )


@pytest.mark.parametrize(
    ("vocab", "scale"),
    [(40, 1.0), (272, 2.0), (512, 2.0), (5003, 3.0)],
    ids=["less than a block", "whole cells that fill no vector", "few cells", "cells that are chosen from"],
)
def test_tokens_are_those_of_the_definition(run: Run, vocab: int, scale: float) -> None:
    logits, p = make(vocab, scale)
    for each in (off(p), rare(p)):
        assert run(logits, each) == sample(np, logits, each).tolist()
    undecided = (sample_top_candidates(np, logits, p) == UNDECIDED).sum()
    assert (5 < undecided < 32) == (vocab > 16 * CELLS), "both ways are taken"


def test_a_row_is_drawn_alike_in_any_company(run: Run) -> None:
    logits, p = make(512, 2.0)
    p = rare(p)
    whole = run(logits, p)
    for rows in (slice(0, 1), slice(3, 8), slice(9, 41)):
        assert run(logits[rows], SamplingArrays._make(field[rows] for field in p)) == whole[rows]
