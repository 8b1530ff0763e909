"""In bfloat16 a runner's logits are as near to those in float32 as transformers' own in bfloat16."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from tests.reference.conftest import BACKENDS, Reference, load_runner
from tests.reference.test_families import CONTEXT, TOKENS
from workers.engine.runner import Chunk

pytestmark = pytest.mark.reference

ROOM = 1.3
"""Rounding differs from order to order: transformers' own error may be exceeded by this factor."""


FURTHER = {("iree", "llama"), ("mlx", "llama"), ("iree", "granite")}
PAIRS = [*product(BACKENDS, ("llama", "gemma", "granite")), ("iree", "granitemoe"), ("iree", "qwen3_5_text")]
PARAMS = [pytest.param(*each, marks=[pytest.mark.exhaustive] if each in FURTHER else ()) for each in PAIRS]


@pytest.mark.parametrize(("backend", "family"), PARAMS)
def test_logits(torch: Any, tmp_path: Path, cache_dir: Path, backend: str, family: str) -> None:
    path = make_checkpoint(tmp_path, family, dtype="bfloat16")
    expected = Reference(path).logits(TOKENS)
    rounded = Reference(path, torch.bfloat16).logits(TOKENS)
    runner = load_runner(backend, path, cache_dir, context=CONTEXT, dtype="bfloat16")
    actual = runner.logits(Chunk(0, TOKENS, 0, 0))
    runner.close()
    assert 0 < _error(actual, expected) < ROOM * _error(rounded, expected)


def _error(logits: Any, expected: Any) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean((logits - expected) ** 2)))
