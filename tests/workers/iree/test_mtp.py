"""The head for multi-token prediction on IREE."""

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import make_checkpoint
from tests.compiling import compiling_here
from tests.gate import run_gate
from tests.prefix_gate import run_prefix_gate
from tests.workers.iree.conftest import fetch_all
from tests.workers.mtp_gate import run_mtp_gate, tokens_of
from tests.workers.mtp_reference import MtpReference
from tests.workers.qwen_mtp_reference import QwenMtpReference
from tests.workers.rows_gate import run_rows_gate
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.runner import IreeRunner
from workers.load_options import LoadOptions


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), "mimo", tied=False)


def load_with_head(
    path: Path, cache_dir: Path, graphs: tuple[str, ...] = ("mtp", "rows"), **changes: Any
) -> IreeRunner:
    given: dict[str, Any] = {"dtype": "float32", **changes}
    options = LoadOptions(device="local-task", slots=8, context=96, cache_dir=cache_dir, **given)
    config = ModelConfig.from_dir(path).with_mtp()
    with compiling_here():
        runner = IreeRunner.load(path, config, options, lambda phase, done, total: None, background=False)
    fetch_all(runner, *graphs)
    return runner


def test_the_head_computes_what_the_reference_does(path: Path, cache_dir: Path) -> None:
    runner = load_with_head(path, cache_dir)
    run_mtp_gate(runner, MtpReference(path), tokens_of(60))
    runner.close()


@pytest.mark.parametrize("preempts", [False, True], ids=["", "preempting"])
def test_drafts_of_the_head_change_no_answer(path: Path, cache_dir: Path, preempts: bool) -> None:
    report = run_gate(lambda: load_with_head(path, cache_dir), requests=24, preempts=preempts, by_head=True)
    assert report.drafted > (5 if preempts else 50)
    assert not preempts or report.preemptions


def test_rows_are_moved_and_reused_with_those_of_the_head(path: Path, cache_dir: Path) -> None:
    one, other = load_with_head(path, cache_dir), load_with_head(path, cache_dir)
    run_rows_gate(one, other, 40)
    one.close()
    other.close()
    run_prefix_gate(lambda: load_with_head(path, cache_dir))


@pytest.mark.reference
@pytest.mark.parametrize(
    "family",
    [pytest.param(each, marks=[pytest.mark.slow, pytest.mark.exhaustive]) for each in ("qwen3_5_text", "qwen3_next")],
)
def test_the_head_of_a_hybrid_model_computes_what_the_reference_does(
    family: str, tmp_path: Path, cache_dir: Path
) -> None:
    """Also after a rejected draft, and after a copy."""
    path = make_checkpoint(tmp_path, family, tied=False, fields={"mtp_num_hidden_layers": 1})
    runner = load_with_head(path, cache_dir, ("mtp_8", "rows"))
    run_mtp_gate(runner, QwenMtpReference(path), tokens_of(60))
    runner.close()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_head_of_a_quantized_checkpoint(tmp_path: Path, cache_dir: Path) -> None:
    """It drafts what the head of the dequantized one does."""
    path = make_checkpoint(tmp_path, "mimo", tied=False, quantized_bits=8)
    runner = load_with_head(path, cache_dir)
    assert {"2.input", "2.qkv"} <= {each.name for each in runner.graphs.builder.plan.weights if each.packing}
    run_mtp_gate(runner, MtpReference(path), tokens_of(60), 2e-3)
    runner.close()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_widths_that_are_padded(tmp_path: Path, cache_dir: Path) -> None:
    path = make_checkpoint(tmp_path, "mimo", hidden=60, head_dim=20, heads=3, kv_heads=1, ffn=100)
    runner = load_with_head(path, cache_dir)
    run_mtp_gate(runner, MtpReference(path), tokens_of(60))
    runner.close()
