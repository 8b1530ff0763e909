"""GGUF files on IREE: the tokens and logits of the checkpoints that they were made from."""

from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint, write_safetensors
from tests.gguf_files import Type, make_gguf
from tests.workers.iree.conftest import Load
from workers.checkpoints.checkpoint import open_weights
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.runner import IreeRunner
from workers.local_model import LocalModel
from workers.sampling.sample_spec import SampleSpec

PROMPT = tuple(range(5, 25))
SMALL = {"slots": 1, "context": 32}


def greedy(runner: IreeRunner, steps: int = 6) -> list[int]:
    """The tokens that a prompt is continued with."""
    [token] = runner.prefill([Chunk(0, PROMPT, 0, 0)], [SampleSpec()])
    assert token is not None
    found = [token]
    for step in range(steps):
        [token] = runner.decode([DecodeRow(0, found[-1], len(PROMPT) + step, SampleSpec())])
        assert token is not None
        found.append(token)
    return found


def test_plain_weights_give_the_same_tokens(load: Load, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", layers=1)
    found = []
    for each in (path, make_gguf(path, tmp_path / "model.gguf")):
        runner = load(each, **SMALL)
        try:
            found.append((runner.logits(Chunk(0, PROMPT, 0, 0)).tobytes(), greedy(runner)))
        finally:
            runner.close()
    assert found[0] == found[1]


def mixed(name: str) -> Type:
    """The values of a layer have another type than its queries and keys."""
    return Type.Q8_0 if "attn_v" in name else Type.Q4_1


@pytest.mark.parametrize("kind", [Type.Q4_0, mixed], ids=["q4_0", "mixed"])
def test_quantized_weights_are_those_of_the_file(load: Load, tmp_path: Path, kind: Type) -> None:
    plain = make_checkpoint(tmp_path / "model", layers=1)
    file = make_gguf(plain, tmp_path / "model.gguf", kind)
    weights = open_weights(file)
    write_safetensors(plain / "model.safetensors", {name: weights[name] for name in weights})
    packed, wide = load(file, **SMALL), load(plain, **SMALL)
    try:
        assert packed.capabilities.quantization == ("int4" if kind is Type.Q4_0 else "int4+int8")
        expected, actual = (runner.logits(Chunk(0, PROMPT, 0, 0)) for runner in (wide, packed))
        # Rows are quantized to 8 bits before they are multiplied.
        np.testing.assert_allclose(actual, expected, atol=0.05 * float(np.abs(expected).max()), rtol=0)
    finally:
        packed.close()
        wide.close()


def test_a_sharded_file_is_served_with_its_text(tmp_path: Path, cache_dir: Path) -> None:
    path = make_checkpoint(tmp_path / "model", layers=1)
    folder = tmp_path / "gguf"
    folder.mkdir()
    make_gguf(path, folder / "model.gguf", shards=2)
    options = {"backend": "iree", "context": 32, "max_batch_size": 1, "cache_dir": str(cache_dir), "dtype": "float32"}
    answers = []
    for each in (path, folder, folder / "model-00002-of-00002.gguf"):
        with LocalModel.load(each, **options) as model:
            answers.append(model.generate("The capital").text)
    assert answers[0] == answers[1] == answers[2]
