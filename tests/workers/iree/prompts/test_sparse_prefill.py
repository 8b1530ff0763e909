"""Sparse prefill on IREE: true positions, and the queries and keys that scores are made of."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from protocol.request import Sampling
from tests.workers.iree.conftest import CONTEXT, Load
from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import LOOKED_ROWS, Chunk, DecodeRow, Runner
from workers.engine.sparse.sparse_request import SparsePrompt
from workers.iree.runner import IreeRunner
from workers.load_options import LoadOptions
from workers.sampling.sample_spec import SampleSpec

PROMPT = tuple(int(token) for token in np.random.default_rng(5).integers(5, 60, 80))
KEPT = ((0, 16), (40, 48), (60, 80))
POSITIONS = tuple(at for start, end in KEPT for at in range(start, end))
SPEC = SampleSpec(Sampling(), len(PROMPT))


@pytest.fixture(scope="module")
def runner(load: Load) -> Iterator[IreeRunner]:
    runner = load(attention=True)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def other(checkpoint: Path) -> Iterator[Runner]:
    """The same model on MLX."""
    mlx = pytest.importorskip("workers.mlx.runner", reason="the MLX backend is not installed")
    options = LoadOptions(device="cpu", dtype="float32", slots=2, context=CONTEXT, cache_dir=checkpoint, attention=True)
    runner = mlx.MlxRunner.load(checkpoint, ModelConfig.from_dir(checkpoint), options, lambda *_: None)
    yield runner
    runner.close()


def chunk(slot: int, positions: tuple[int, ...], start: int = 0) -> Chunk:
    return Chunk(slot, tuple(PROMPT[at] for at in positions), start, positions[0], positions=positions)


def logits_of(runner: Runner) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    runner.reset(1)
    return runner.logits(chunk(1, POSITIONS))


def test_rows_have_the_positions_that_they_have_in_the_whole_prompt(runner: IreeRunner, other: Runner) -> None:
    mine, others = logits_of(runner), logits_of(other)
    assert np.allclose(mine, others, rtol=1e-4, atol=1e-4)
    runner.reset(1)
    closed = runner.logits(Chunk(1, chunk(1, POSITIONS).tokens, 0, 0))
    assert not np.allclose(mine, closed, rtol=1e-2), "as they would be one after the other"


def test_a_row_at_any_position_is_bitwise_the_same_in_any_call(runner: IreeRunner) -> None:
    runner.reset(0)
    whole = runner.prefill([chunk(0, POSITIONS)], [SPEC])
    rows = runner.read_rows(0, 0, len(POSITIONS))
    runner.reset(1)
    runner.prefill([chunk(1, POSITIONS[:13])], [None])
    runner.reset(2)
    parts = [chunk(1, POSITIONS[13:], 13), Chunk(2, PROMPT[:9], 0, 0)]
    assert runner.prefill(parts, [SPEC, None])[0] == whole[0]
    assert runner.read_rows(1, 0, len(POSITIONS)) == rows
    runner.reset(3)
    runner.prefill([chunk(3, POSITIONS[:-1])], [None])
    last = len(POSITIONS) - 1
    assert runner.decode([DecodeRow(3, PROMPT[-1], last, POSITIONS[-1], SPEC)]) == whole
    assert runner.read_rows(3, 0, len(POSITIONS)) == rows


def answers(runner: Runner, *requests: EngineRequest) -> dict[int, list[int]]:
    engine = BatchEngine(runner, max_queue=8, step_tokens=64)
    for request in requests:
        engine.submit(request)
    out: dict[int, list[int]] = {}
    while not engine.idle:
        result = engine.step()
        assert not result.failures
        for token in result.tokens:
            out.setdefault(token.stream, []).append(token.token)
    return out


def test_with_all_kept_the_tokens_are_those_of_the_whole_prompt(runner: IreeRunner) -> None:
    sampling = Sampling(temperature=0.9, seed=3)
    plain = EngineRequest(1, PROMPT, sampling, 14)
    kept = EngineRequest(2, PROMPT, sampling, 14, sparse=SparsePrompt(kept=((0, 80),)))
    part = EngineRequest(3, PROMPT, sampling, 14, sparse=SparsePrompt(kept=KEPT))
    alone = [answers(runner, each)[each.stream] for each in (plain, kept, part)]
    assert alone[0] == alone[1] != alone[2]
    together = answers(runner, part, plain, kept)
    assert [together[stream] for stream in (1, 2, 3)] == alone


def test_queries_and_keys_are_those_of_another_backend(runner: IreeRunner, other: Runner) -> None:
    products = []
    for each in (runner, other):
        assert each.attention is not None
        each.reset(0)
        each.prefill([Chunk(0, PROMPT[:32], 0, 0)], [None])
        each.prefill([Chunk(0, PROMPT[32:50], 32, 32)], [None])
        queries = np.stack(each.attention.queries(Chunk(0, PROMPT[50 : 50 + LOOKED_ROWS], 50, 50)))
        keys = np.stack([each.attention.keys(0, layer, 50) for layer in each.attention.layers])
        grouped = queries.reshape(*queries.shape[:2], keys.shape[1], -1, queries.shape[-1])
        products.append(np.einsum("lrkgd,lktd->lrkgt", grouped, keys))
    assert np.allclose(products[0], products[1], rtol=1e-4, atol=1e-4)
    assert products[0].shape[0] == len(ModelConfig.from_dir(Path(runner.graphs.builder.recipe.model)).plan)
