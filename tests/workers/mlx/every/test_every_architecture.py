"""Every architecture of the installed mlx-lm is served with the tokens of mlx-lm, or refused with the reason."""

from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm import utils
from mlx_lm.generate import generate_step

from protocol.request import Sampling
from tests.gate import alone
from tests.workers.mlx.conftest import quiet
from tests.workers.mlx.every.architectures import METAL, REFUSED, UNMADE, architectures, make_architecture
from tests.workers.mlx.every.fields import VOCAB
from tests.workers.process.harness.gateway_peer import scripted
from workers.checkpoints.checkpoint import CheckpointError
from workers.engine.request import EngineRequest
from workers.mlx.alone.runner import LoneRunner
from workers.mlx.families import BATCHED
from workers.mlx.runner import MlxRunner
from workers.process.backends import load_runner

PROMPT = tuple((37 * at) % 500 + 5 for at in range(45))
NAMES = sorted(set(architectures()) - set(UNMADE))
SAMPLE = ("gemma3n", "kimi_linear", "llama4", "longcat_flash_ngram", "rwkv7", "gpt_neox")
"""Those of the default run: caches of each kind of mlx-lm, and one that is batched and has tensors of other names."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SAMPLE else [pytest.mark.exhaustive]) for name in NAMES]
)
def test_tokens_are_those_of_mlx_lm(tmp_path: Path, name: str) -> None:
    path = make_architecture(tmp_path, name)
    spec = scripted(backend="mlx", device="cpu", model_path=str(path), context=128, max_batch_size=2)
    if name in METAL and not mx.metal.is_available():
        with pytest.raises(CheckpointError, match=rf"{name} cannot be computed by mlx-lm on cpu: .*Metal"):
            load_runner(spec, quiet)
        return
    if name in REFUSED:
        with pytest.raises(CheckpointError, match=REFUSED[name]):
            load_runner(spec, quiet)
        return
    runner = load_runner(spec, quiet)
    assert isinstance(runner, MlxRunner if name in BATCHED else LoneRunner)
    tokens = alone(runner, EngineRequest(1, PROMPT, Sampling(), 8))
    runner.close()
    with mx.stream(mx.Device(mx.cpu)):
        model, _ = utils.load_model(path)
        assert tokens == [int(token) for token, _ in generate_step(mx.array(PROMPT), model, max_tokens=8)]


def test_a_vocabulary_without_tokens_that_mlx_lm_writes_is_refused(tmp_path: Path) -> None:
    """Else it writes out of bounds."""
    path = make_architecture(tmp_path, "phi3small", vocab_size=VOCAB)
    spec = scripted(backend="mlx", device="cpu", model_path=str(path), context=128)
    with pytest.raises(
        CheckpointError, match="vocab_size: 512 is not above 100351, a token whose logits mlx-lm writes"
    ):
        load_runner(spec, quiet)


def test_those_that_are_not_made_are_known() -> None:
    """The others are, so that a new version of mlx-lm adds to this list or to the test."""
    assert set(UNMADE) <= set(architectures())
    assert len(NAMES) > 100
