"""The head for multi-token prediction on IREE."""

from pathlib import Path

from tests.checkpoints import make_checkpoint
from tests.compiling import compiling_here
from tests.mtp_gate import run_mtp_gate, tokens_of
from tests.mtp_reference import MtpReference
from tests.workers.iree.conftest import fetch_all
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.runner import IreeRunner
from workers.load_options import LoadOptions


def load_with_head(path: Path, cache_dir: Path, context: int = 96, slots: int = 4) -> IreeRunner:
    options = LoadOptions(device="local-task", dtype="float32", slots=slots, context=context, cache_dir=cache_dir)
    config = ModelConfig.from_dir(path).with_mtp()
    with compiling_here():
        runner = IreeRunner.load(path, config, options, lambda phase, done, total: None, background=False)
    fetch_all(runner, "decode", "mtp", "rows")
    return runner


def test_the_head_computes_what_the_reference_does(tmp_path: Path, cache_dir: Path) -> None:
    path = make_checkpoint(tmp_path, "mimo", tied=False)
    runner = load_with_head(path, cache_dir)
    run_mtp_gate(runner, MtpReference(path), tokens_of(60))
    runner.close()
