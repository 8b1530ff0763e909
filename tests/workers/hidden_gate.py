"""Gate of `Runner.hidden` for any backend."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.request import Sampling
from workers.checkpoints.checkpoint import open_weights
from workers.engine.runner import Chunk, Runner
from workers.sampling.sample_spec import SampleSpec

TOKENS = tuple(range(10, 50))


def run_hidden_gate(runner: Runner, checkpoint: Path) -> NDArray[np.float32]:
    """The hidden states of a text, of a checkpoint with tied embeddings: those of the logits, and the same bits in any
    chunks, beside any others, and after a prefill. Their slot generates on. Returns them."""
    logits = runner.logits(Chunk(1, TOKENS, 0, 0))
    (whole,) = runner.hidden([Chunk(2, TOKENS, 0, 0)])
    assert whole.dtype == np.float32
    assert whole.shape == (len(TOKENS), runner.capabilities.hidden_width)
    table = np.asarray(open_weights(checkpoint)["model.embed_tokens.weight"], np.float32)
    np.testing.assert_allclose(whole @ table.T, logits, atol=1e-4)
    first, beside = runner.hidden([Chunk(0, TOKENS[:13], 0, 0), Chunk(3, TOKENS[5:30], 0, 0)])
    rest, other = runner.hidden([Chunk(0, TOKENS[13:], 13, 13), Chunk(1, TOKENS, 0, 0)])
    np.testing.assert_array_equal(np.concatenate([first, rest]), whole)
    np.testing.assert_array_equal(other, whole)
    assert not np.array_equal(beside[0], whole[5])
    runner.reset(3)
    runner.prefill([Chunk(3, TOKENS[:32], 0, 0)], [None])
    (last,) = runner.hidden([Chunk(3, TOKENS[32:], 32, 32)])
    np.testing.assert_array_equal(last, whole[32:])
    for slot in (0, 1):  # their rows are those of a prefill
        (token,) = runner.prefill([Chunk(slot, TOKENS[-1:], 39, 39)], [SampleSpec(Sampling(), 40)])
        assert token == int(logits[-1].argmax())
    return whole
