"""Models with latent attention on the kernels for CPUs: the promises of all models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from tests.gate import run_gate
from tests.prefix_gate import run_prefix_gate
from tests.reference.jax_graphs import JaxGraphs
from tests.workers.iree.conftest import Load, fetch_all
from tests.workers.iree.test_gate import TOKENS, check_logits
from tests.workers.iree.test_hybrid import Kept
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig
from workers.engine.runner import Chunk
from workers.errors import LoadRefused
from workers.iree.runner import IreeRunner

FURTHER = {
    "minicpm3-int8": ("minicpm3", {"dtype": "bfloat16", "quantize": "int8"}),
    "deepseek_v3": ("deepseek_v3", {"dtype": "float32"}),
}
MODELS = [
    pytest.param(("minicpm3", {"dtype": "float32"}), id="minicpm3"),
    *(pytest.param(each, id=name, marks=pytest.mark.exhaustive) for name, each in FURTHER.items()),
]


@pytest.fixture(scope="module", params=MODELS)
def loaded(request: Any, load: Load, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, IreeRunner]]:
    family, options = request.param
    path = make_checkpoint(tmp_path_factory.mktemp("latent"), family)
    runner = load(path, **options)
    fetch_all(runner, "decode_1")
    yield path, runner
    runner.close()


@pytest.fixture
def latent(loaded: tuple[Path, IreeRunner]) -> IreeRunner:
    Kept(loaded[1]).close()
    return loaded[1]


def test_logits_are_those_of_plain_operations(loaded: tuple[Path, IreeRunner]) -> None:
    path, runner = loaded
    expected = JaxGraphs(path, 96).logits(Chunk(0, TOKENS[:40], 0, 0))
    tolerance = 2e-4 if runner.capabilities.dtype == "float32" else 0.3
    np.testing.assert_allclose(runner.logits(Chunk(0, TOKENS[:40], 0, 0)), expected, atol=tolerance)


def test_logits_are_bitwise_identical(latent: IreeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any decode graph, beside any neighbours, prefilled in any chunks."""
    check_logits(latent, monkeypatch)


def test_rows_are_one_latent_and_the_lanes_with_positions(latent: IreeRunner) -> None:
    config, itemsize = latent._plan.config, 4 if latent.capabilities.dtype == "float32" else 2
    assert config.latent is not None
    assert latent.capabilities.row_bytes == config.layers * (2 * config.latent.rank + config.latent.rotated) * itemsize
    latent.prefill([Chunk(0, TOKENS[:30], 0, 0)], [None])
    rows = bytes(latent.read_rows(0, 0, 30))
    latent.write_rows(1, 0, rows)
    assert bytes(latent.read_rows(1, 0, 30)) == rows
    np.testing.assert_array_equal(
        latent.logits(Chunk(1, TOKENS[30:40], 30, 30)), latent.logits(Chunk(0, TOKENS[30:40], 30, 30))
    )


def test_prefix_gate(latent: IreeRunner) -> None:
    made: Any = lambda: Kept(latent)  # noqa: E731
    assert run_prefix_gate(made).hits > 0


def test_gate_with_drafts(latent: IreeRunner) -> None:
    made: Any = lambda: Kept(latent)  # noqa: E731
    report = run_gate(made, requests=32, max_tokens=16, speculates=True)
    assert (report.requests, report.most_active) == (32, 8)
    assert min(report.cancelled, report.resumed, report.reported, report.prompts_reported) > 0
    assert report.drafted > 50
    assert 0 < report.accepted < report.drafted


def test_sizes_that_are_no_whole_vectors_and_quantized_latents_are_refused(load: Load, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "minicpm3", fields={"qk_nope_head_dim": 24})
    with pytest.raises(CheckpointError, match="qk_nope_head_dim: 24 is no multiple of 16"):
        load(path)
    with pytest.raises(LoadRefused, match="kv_dtype: int8 is not supported for latents"):
        load(path, kv_dtype="int8")
    assert ModelConfig.from_dir(path).latent is not None
