"""Models that get kernels of our own, and those that get plain graphs."""

from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.build.recipe import choose_ops
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.tiled_ops import TiledOps


@pytest.mark.parametrize(
    ("share", "kind"), [(1.0, TiledOps), (0.75, TiledOps), (0.625, PlainOps)], ids=["all", "12 lanes", "10 lanes"]
)
def test_what_is_turned_must_be_pairs_of_pairs(tmp_path: Path, share: float, kind: type) -> None:
    path = make_checkpoint(tmp_path / "model", "phi3", tied=False, fields={"partial_rotary_factor": share})
    config = ModelConfig.from_dir(path)
    assert isinstance(choose_ops(config, "bfloat16", local=True), kind)
    assert isinstance(choose_ops(config, "bfloat16", local=False), PlainOps)
