"""The head for multi-token prediction on MLX."""

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import make_checkpoint
from tests.mtp_gate import run_mtp_gate, tokens_of
from tests.mtp_reference import MtpReference
from workers.checkpoints.checkpoint import ModelConfig
from workers.load_options import LoadOptions
from workers.mlx.runner import MlxRunner


def load_with_head(path: Path, **options: Any) -> MlxRunner:
    chosen = LoadOptions(device="cpu", slots=4, context=256, cache_dir=path, **options)
    return MlxRunner.load(path, ModelConfig.from_dir(path).with_mtp(), chosen, lambda phase, done, total: None)


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_computes_what_the_reference_does(tmp_path: Path, tied: bool) -> None:
    path = make_checkpoint(tmp_path, "mimo", tied=tied)
    runner = load_with_head(path)
    run_mtp_gate(runner, MtpReference(path), tokens_of(60))
    runner.close()
