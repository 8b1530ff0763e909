"""Checkpoints of hybrid models that mlx-lm has converted, computed by the MLX backend like the originals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from tests.workers.checkpoints.test_converted_weights import convert_as_mlx_lm
from workers.engine.runner import Chunk

Load = Any


@pytest.mark.parametrize("family", ["lfm2_moe", "qwen3_5_text", "qwen3_next"])
def test_the_same_logits_as_the_original(tmp_path: Path, load: Load, family: str) -> None:
    source = make_checkpoint(tmp_path / "original", family)
    converted = convert_as_mlx_lm(source, tmp_path / "converted", centred=family != "lfm2_moe")
    one, other = (load(path).logits(Chunk(0, tuple(range(5, 25)), 0, 0)) for path in (source, converted))
    np.testing.assert_allclose(one, other, atol=1e-5)
