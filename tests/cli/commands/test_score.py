"""`baton score` of texts that a model takes for unlikely or impossible."""

import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from cli.commands.score import perplexity
from cli.main import app
from workers.engine.runner import Chunk
from workers.local_model import Score
from workers.scripted.runner import ScriptedRunner


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param((), math.nan, id="one-token"),
        pytest.param((0.0, 0.0), 1.0, id="certain"),
        pytest.param((-math.log(4.0),), 4.0, id="one-of-four"),
        pytest.param((-709.0,), math.exp(709.0), id="largest"),
        pytest.param((-710.0,), math.inf, id="beyond-the-largest-float"),
        pytest.param((-1e38, 0.0), math.inf, id="far-beyond"),
        pytest.param((-math.inf, 0.0), math.inf, id="impossible"),
        pytest.param((-1.7e308, -1.7e308), math.inf, id="infinite-total"),
    ],
)
def test_the_perplexity(values: tuple[float, ...], expected: float) -> None:
    tokens = (1,) * (len(values) + 1)
    assert perplexity(Score(tokens, values)) == pytest.approx(expected, nan_ok=True)


class Unlikely(ScriptedRunner):
    """Runner that gives all tokens but the first a probability of exp(-3e38)."""

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        logits = np.zeros_like(super().logits(chunk))
        logits[:, 0] = 3e38
        return logits


class Impossible(ScriptedRunner):
    """Runner that gives all tokens but the first the probability 0."""

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        logits = np.full_like(super().logits(chunk), -np.inf)
        logits[:, 0] = 0.0
        return logits


@pytest.mark.parametrize("runner", [Unlikely, Impossible])
def test_a_text_without_a_finite_perplexity_is_scored(
    monkeypatch: pytest.MonkeyPatch, runner: type[ScriptedRunner]
) -> None:
    monkeypatch.setattr("workers.process.backends.ScriptedRunner", runner)
    command = ["score", "-p", "Hello", "--backend", "scripted"]
    table = CliRunner().invoke(app, command)
    assert (table.exit_code, table.exception) == (0, None)
    assert "perplexity inf" in table.stdout
    report = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout, parse_constant=pytest.fail)
    assert report["perplexity"] is None
    finite = runner is Unlikely
    assert [value is not None for value in (report["total"], *report["log_likelihoods"])] == [finite] * 5
