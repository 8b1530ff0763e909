"""The guide's example is an entry that reads a checkpoint of its family."""

import re
from pathlib import Path
from typing import Any

from tests.checkpoints import make_checkpoint
from workers.checkpoints.checkpoint import ModelConfig

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-model.md"


def test_the_example_reads_its_family(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    fields = {"architectures": ["GemmaForCausalLM"], "hidden_act": "gelu_pytorch_tanh"}
    path = make_checkpoint(tmp_path, fields=fields)
    config = ModelConfig.from_dir(path, {"gemma": names["GEMMA"]})
    assert (config.family, config.activation, config.norm_offset) == ("gemma", "gelu_tanh", 1.0)
    assert config.embedding_scale == 8.0
