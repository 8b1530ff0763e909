"""Defaults: fields that config.json leaves out have the values that transformers gives them."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.families import ARCHITECTURES, FAMILIES
from workers.checkpoints.checkpoint import ModelConfig

pytestmark = pytest.mark.reference

STATED = (
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "moe_num_experts",
    "n_routed_experts",
    "num_attention_heads",
    "num_experts",
    "num_hidden_layers",
    "num_local_experts",
    "vocab_size",
)
"""The sizes: every config.json has them."""
SWITCHES: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": True},
    "qwen3": {"use_sliding_window": True},
    "qwen3_moe": {"use_sliding_window": True},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "mlp", "moe"], "num_hidden_layers": 4},
    "smollm3": {"use_sliding_window": True, "sliding_window": 9},
    "phi3": {
        "max_position_embeddings": 8192,
        "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
    },
}
"""Fields that make those beside them matter, or have no default."""


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_what_is_left_out_is_as_if_written_out(tmp_path: Path, family: str) -> None:
    from transformers import AutoConfig

    switches = SWITCHES.get(family, {})
    names = {"architectures": [ARCHITECTURES[family]], "model_type": family}
    served_as = FAMILIES[family].served_as or family
    whole = AutoConfig.for_model(served_as, **copy.deepcopy(switches)).to_dict() | names  # which it writes into
    stated = {name: whole[name] for name in STATED if name in whole} | switches | names
    assert _read(tmp_path, stated) == _read(tmp_path, whole)


def _read(directory: Path, values: dict[str, Any]) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(values))
    return ModelConfig.from_dir(directory)
