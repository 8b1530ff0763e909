"""The shipped models in transformers: other programs read their files with the same result."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models import builtin_path, draft_path
from tests.reference.conftest import CONTEXT, Reference, load_runner
from workers.engine.runner import Chunk
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

pytestmark = pytest.mark.reference

TEXT = "The capital of France is Paris. 17 + 25 = 42. добрый день"


@pytest.mark.parametrize("find", [builtin_path, draft_path])
def test_logits(find: Callable[[], Path], cache_dir: Path) -> None:
    from transformers import AutoTokenizer

    path = find()
    tokens = tuple(CheckpointTokenizer.from_dir(path).encode(TEXT, special=True))
    assert tokens == tuple(AutoTokenizer.from_pretrained(path)(TEXT)["input_ids"])
    assert len(tokens) < CONTEXT
    runner = load_runner("mlx", path, cache_dir)
    actual = runner.logits(Chunk(0, tokens, 0, 0))
    runner.close()
    np.testing.assert_allclose(actual, Reference(path).logits(tokens), atol=1e-3)
