"""Checkpoints of known families with parts that only mlx-lm computes."""

import json
from pathlib import Path

from tests.checkpoints import make_checkpoint
from workers.checkpoints.lone_config import LoneConfig
from workers.mlx.alone.choice import lone_config


def test_nemotron_h_with_experts_and_biases_runs_alone(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "nemotron_h")
    assert lone_config(path, 64) is None
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"hybrid_override_pattern": "M*E", "mlp_bias": True}))
    found = lone_config(path, 64)
    assert isinstance(found, LoneConfig)
    assert found.family == "nemotron_h"
