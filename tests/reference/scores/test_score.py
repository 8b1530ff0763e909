"""Log-likelihoods of a session against those of transformers."""

from pathlib import Path

import numpy as np
import pytest

from protocol.request import Limits
from tests.reference.conftest import PROMPT, Pair, Reference
from workers.engine.engine import BatchEngine
from workers.local_model import LocalModel
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

pytestmark = pytest.mark.reference

TOLERANCE = 2e-4


def test_tokens(pair: Pair) -> None:
    model = LocalModel(BatchEngine(pair.runner, max_queue=0, step_tokens=64), None)
    for tokens in (PROMPT, PROMPT[:2]):
        score = model.score(tokens)
        assert score.tokens == tokens
        np.testing.assert_allclose(score.log_likelihoods, pair.reference.log_likelihoods(tokens), atol=TOLERANCE)


def test_reported_prompts(pair: Pair) -> None:
    """The log-probabilities that a request gets, which are rounded as those of generated tokens are."""
    model = LocalModel(BatchEngine(pair.runner, max_queue=0, step_tokens=64), None)
    for tokens in (PROMPT, PROMPT[:2]):
        answer = model.generate(tokens, limits=Limits(max_tokens=0), prompt_logprobs=3)
        assert tuple(each.token for each in answer.prompt) == tokens
        values = np.array([each.logprob for each in answer.prompt[1:]], np.float64)
        np.testing.assert_allclose(values, pair.reference.log_likelihoods(tokens), atol=2 * TOLERANCE, rtol=1e-4)


def test_text(pair: Pair, checkpoints: dict[str, Path], references: dict[str, Reference]) -> None:
    """Score text, beside the tokenizer of transformers."""
    from transformers import AutoTokenizer

    path = next(checkpoints[name] for name, reference in references.items() if reference is pair.reference)
    text = "The capital of France is Paris. добрый день 🙂"
    tokens = tuple(AutoTokenizer.from_pretrained(path)(text)["input_ids"])
    model = LocalModel(BatchEngine(pair.runner, max_queue=0, step_tokens=64), CheckpointTokenizer.from_dir(path))
    score = model.score(text)
    assert score.tokens == tokens
    assert score.total == pytest.approx(float(pair.reference.log_likelihoods(tokens).sum()), abs=2e-3)
