"""Gemma 4 on IREE: two shapes of keys and values, layers that read those of others, embeddings of each layer, and
experts beside the MLP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from tests.gate import run_gate
from tests.prefix_gate import run_prefix_gate
from tests.reference.layers.gemma4_layers import ALL, DENSE
from tests.workers.iree.conftest import Load, fetch_all
from tests.workers.iree.test_gate import GREEDY, TOKENS, check_logits
from tests.workers.iree.test_generic import load_generic
from tests.workers.iree.test_hybrid import Kept
from workers.checkpoints.checkpoint import CheckpointError
from workers.engine.runner import Chunk, DecodeRow
from workers.errors import LoadRefused
from workers.iree.runner import IreeRunner

WINDOW = {"sliding_window": 9}


@pytest.fixture(scope="module")
def gemma4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything at once, in as few layers as have it: a layer of each kind, and one of each that reads its rows."""
    return make_checkpoint(tmp_path_factory.mktemp("gemma4"), "gemma4_text", layers=4, fields=ALL | WINDOW)


@pytest.fixture(scope="module")
def loaded(load: Load, gemma4: Path) -> Iterator[IreeRunner]:
    runner = load(gemma4)
    yield runner
    runner.close()


def test_logits_are_bitwise_identical(loaded: IreeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded.capabilities.exact_rows
    check_logits(loaded, monkeypatch)


@pytest.mark.reference
def test_logits_are_those_of_transformers(loaded: IreeRunner, gemma4: Path) -> None:
    pytest.importorskip("torch", reason="the reference needs torch: pip install -e '.[reference]'")
    from tests.reference.conftest import Reference

    expected, rows = Reference(gemma4).logits(TOKENS[:40]), []
    loaded.reset(0)
    loaded.prefill([Chunk(0, TOKENS[:33], 0, 0)], [None])
    assert expected.std() > 0.3
    np.testing.assert_allclose(loaded.logits(Chunk(1, TOKENS[:40], 0, 0)), expected, atol=2e-4)
    for at in range(33, 40):
        rows += loaded.decode([DecodeRow(0, TOKENS[at], at, at, GREEDY)])
    assert rows == expected[33:].argmax(-1).tolist()


def test_gates(loaded: IreeRunner) -> None:
    made: Any = lambda: Kept(loaded)  # noqa: E731
    report = run_gate(made, requests=32, max_tokens=30, speculates=True, preempts=True)
    assert min(report.accepted, report.preemptions, report.grammars, report.masked) > 0
    assert run_prefix_gate(made).hits > 0


def test_rows_of_embeddings_are_refused(load: Load, gemma4: Path) -> None:
    with pytest.raises(LoadRefused, match=r"embeddings: .*hidden_size_per_layer_input"):
        load(gemma4, embeddings=True)


def test_experts_are_refused_on_gpus(load: Load, gemma4: Path) -> None:
    with pytest.raises(CheckpointError, match="experts of gemma4_text run on CPUs only"):
        load_generic(load, gemma4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fields", [{}, DENSE], ids=["small", "dense"])
def test_gate_on_gpus(load: Load, tmp_path: Path, fields: dict[str, Any]) -> None:
    path = make_checkpoint(tmp_path / "model", "gemma4_text", layers=4, fields=fields | WINDOW)
    runner = load_generic(load, path, dtype="bfloat16")
    report = run_gate(lambda: runner, requests=32, max_tokens=12, resume=False)
    assert report.requests >= 32


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fields", "options"),
    [
        (ALL, {"dtype": "float32", "kv_dtype": "int4"}),
        (ALL, {"dtype": "bfloat16", "quantize": "int8", "kv_dtype": "int8"}),
        (ALL, {"dtype": "bfloat16", "quantize": "int4"}),
        (DENSE, {"dtype": "bfloat16", "kv_dtype": "int8", "cpu": "avx2"}),
    ],
    ids=["float32", "int8", "int4", "avx2"],
)
def test_gates_of_others(load: Load, tmp_path: Path, fields: dict[str, Any], options: dict[str, Any]) -> None:
    """Heads are of lanes that levels of 4 bits fill."""
    path = make_checkpoint(tmp_path / "model", "gemma4_text", layers=4, head_dim=32, fields=fields | WINDOW)
    runner = load(path, **options)
    fetch_all(runner, "decode_1", "decode_4")
    assert run_gate(lambda: runner, requests=32, max_tokens=20, speculates=True).accepted > 0
