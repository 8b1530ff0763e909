"""Converted checkpoints on IREE: GGUF files, FP8 and MXFP4 give the tokens and logits of plain weights."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint, write_safetensors
from tests.sampled import sampled
from tests.workers.checkpoints.gguf.gguf_files import make_gguf
from tests.workers.checkpoints.low_bits.low_bit_files import served_weights, to_low_bits
from tests.workers.iree.conftest import Load
from workers.checkpoints.checkpoint import open_weights
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.runner import IreeRunner
from workers.sampling.sample_spec import SampleSpec

PROMPT = tuple(range(5, 25))
GREEDY = Sampling(temperature=0.0)


def continued(runner: IreeRunner, steps: int = 6) -> list[int]:
    """The tokens that a prompt is continued with."""
    tokens = sampled(runner.prefill([Chunk(0, PROMPT, 0, 0)], [SampleSpec(GREEDY, len(PROMPT))]))
    for at in range(len(PROMPT), len(PROMPT) + steps):
        tokens += sampled(runner.decode([DecodeRow(0, tokens[-1], at, at, SampleSpec(GREEDY, at + 1))]))
    return tokens


def mixed(name: str) -> Type:
    """The values of a layer have another type than its queries and keys."""
    return Type.Q8_0 if "attn_v" in name else Type.Q4_1


def test_plain_weights_give_the_same_tokens_and_quantized_ones_those_of_the_file(load: Load, tmp_path: Path) -> None:
    path, folder = make_checkpoint(tmp_path / "model", layers=1), tmp_path / "shards"
    folder.mkdir()
    make_gguf(path, folder / "model.gguf", shards=2)
    packed = make_gguf(path, tmp_path / "packed.gguf", mixed)
    found = []
    for each in (path, folder):
        runner = load(each, slots=1, context=32)
        try:
            found.append((runner.logits(Chunk(0, PROMPT, 0, 0)).tobytes(), continued(runner)))
        finally:
            runner.close()
    assert found[0] == found[1]

    weights = open_weights(packed)
    write_safetensors(path / "model.safetensors", {name: weights[name] for name in weights})
    logits = []
    for each, widths in ((packed, "int4+int8"), (path, "")):
        runner = load(each, slots=1, context=32)
        try:
            assert runner.capabilities.quantization == widths
            logits.append(runner.logits(Chunk(0, PROMPT, 0, 0)))
        finally:
            runner.close()
    # Rows are quantized to 8 bits before they are multiplied.
    np.testing.assert_allclose(logits[0], logits[1], atol=0.05 * float(np.abs(logits[1]).max()), rtol=0)


def logits(load: Load, path: Path, quantization: str) -> NDArray[np.float32]:
    runner = load(path, slots=1, context=32)
    try:
        assert runner.capabilities.quantization == quantization
        found: NDArray[np.float32] = runner.logits(Chunk(0, PROMPT, 0, 0))
        return found
    finally:
        runner.close()


@pytest.mark.parametrize("name", ["fp8-blocks", "mxfp4"])
def test_logits_are_those_of_the_served_weights(load: Load, tmp_path: Path, name: str) -> None:
    path = to_low_bits(make_checkpoint(tmp_path / "made", layers=1), name)[0]
    plain = make_checkpoint(tmp_path / "plain", layers=1)
    write_safetensors(plain / "model.safetensors", served_weights(open_weights(path)))
    expected = logits(load, plain, "")
    # Rows are rounded to 22 bits before they are multiplied.
    atol = 1e-4 * float(np.abs(expected).max())
    served = "fp4" if name == "mxfp4" else "int8"
    np.testing.assert_allclose(logits(load, path, served), expected, atol=atol, rtol=0)
