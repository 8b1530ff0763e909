"""Log-likelihoods of given tokens, from the logits of a runner that the test makes up."""

from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.engine.runner import Chunk, Runner, RunnerCapabilities
from workers.engine.scoring import score

VOCAB = 7


class Logits:
    """Runner whose logits at a position depend on the position alone."""

    def __init__(self, scale: float) -> None:
        self.capabilities = RunnerCapabilities("made up", "none", "float32", 1, 64, VOCAB, (2, 4))
        self.rows = (np.random.default_rng(5).normal(size=(64, VOCAB)) * scale).astype(np.float32)
        self.chunks: list[Chunk] = []

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        self.chunks.append(chunk)
        return self.rows[chunk.start : chunk.start + len(chunk.tokens)]


@pytest.mark.parametrize("scale", [1.0, 1000.0], ids=["usual", "large"])
def test_each_token_is_scored_by_the_logits_of_the_one_before(scale: float) -> None:
    runner, tokens = Logits(scale), (1, 6, 0, 3, 2, 5, 4)
    found = score(cast(Runner, runner), 0, tokens)
    rows = runner.rows[: len(tokens) - 1].astype(np.longdouble)
    exact = [row[token] - np.logaddexp.reduce(row) for row, token in zip(rows, tokens[1:], strict=True)]
    np.testing.assert_allclose(found, np.array(exact, np.float64), rtol=1e-12, atol=1e-12)
    assert [(chunk.start, chunk.position, chunk.tokens) for chunk in runner.chunks] == [
        (0, 0, (1, 6, 0, 3)),
        (4, 4, (2, 5)),
    ]


@pytest.mark.parametrize("tokens", [(), (3,)])
def test_nothing_is_scored_without_a_second_token(tokens: tuple[int, ...]) -> None:
    runner = Logits(1.0)
    assert score(cast(Runner, runner), 0, tokens).tolist() == []
    assert runner.chunks == []
