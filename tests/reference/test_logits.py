"""Logits and greedy tokens of both runners against transformers, for every family and kind of checkpoint."""

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.request import Sampling
from tests.reference.conftest import CONTEXT, PROMPT, Pair
from tests.sampled import sampled
from workers.engine.chunking import chunk_lengths
from workers.engine.runner import Chunk, DecodeRow, Runner
from workers.pooling.pooler import VectorPooler
from workers.pooling.pooling import Pooling, PoolingKind
from workers.sampling.sample_spec import SampleSpec

pytestmark = pytest.mark.reference

TOLERANCE = 2e-4
"""The tolerance of logits with a standard deviation of 0.5 to 2, in float32."""


def logits_in_chunks(runner: Runner, tokens: tuple[int, ...], lengths: list[int]) -> NDArray[np.float32]:
    """The logits of all tokens, computed in slot 0 in chunks of these lengths, repeated."""
    runner.reset(0)
    parts: list[NDArray[np.float32]] = []
    start = 0
    while start < len(tokens):
        length = lengths[len(parts) % len(lengths)]
        parts.append(runner.logits(Chunk(0, tokens[start : start + length], start, start)))
        start += length
    return np.concatenate(parts)


def test_prefill(pair: Pair) -> None:
    chunks = chunk_lengths(len(PROMPT), pair.runner.capabilities.prefill_chunks)
    actual = logits_in_chunks(pair.runner, PROMPT, list(chunks))
    expected = pair.reference.logits(PROMPT)
    assert expected.std() > 0.3
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["last", "mean"])
def test_embeddings(pair: Pair, kind: PoolingKind) -> None:
    """Pooled in chunks, and normalized."""
    pair.runner.reset(0)
    pooler = VectorPooler(Pooling(kind))
    for start in range(0, len(PROMPT), 32):
        (states,) = pair.runner.hidden([Chunk(0, PROMPT[start : start + 32], start, start)])
        pooler.add(states)
    hidden = pair.reference.hidden(PROMPT)
    expected = hidden[-1] if kind == "last" else hidden.mean(0)
    np.testing.assert_allclose(pooler.vector(), expected / np.linalg.norm(expected), atol=1e-5)


def test_prefill_across_chunk_boundaries(pair: Pair) -> None:
    smallest = pair.runner.capabilities.prefill_chunks[0]
    actual = logits_in_chunks(pair.runner, PROMPT, [smallest, smallest - 1, 1, 5])
    np.testing.assert_allclose(actual, pair.reference.logits(PROMPT), atol=TOLERANCE)


@pytest.mark.parametrize("chunks", [(5,), (60,), (32, 32, 7), (1, 33)], ids=str)
def test_decode(pair: Pair, chunks: tuple[int, ...]) -> None:
    """Greedy tokens after a prompt in one or more chunks, then the logits over the rows that were written.

    All but the first pass position 64, where llama3 RoPE begins to differ.
    """
    runner, sampling, steps, length = pair.runner, Sampling(), 36, sum(chunks)
    runner.reset(0)
    first: int | None = None
    start = 0
    for size in chunks:
        last = start + size == length
        chunk = Chunk(0, PROMPT[start : start + size], start, start)
        (first,) = runner.prefill([chunk], [SampleSpec(sampling, length) if last else None])
        assert (first is not None) == last
        start += size
    assert first is not None
    tokens = [first]
    for position in range(length, length + steps - 1):
        tokens += sampled(
            runner.decode([DecodeRow(0, tokens[-1], position, position, SampleSpec(sampling, position + 1))])
        )
    assert tokens == pair.reference.greedy(PROMPT[:length], steps)
    assert len(set(tokens)) > 8
    end = length + steps - 1
    actual = runner.logits(Chunk(0, (tokens[-1],), end, end))
    expected = pair.reference.logits(PROMPT[:length] + tuple(tokens))
    np.testing.assert_allclose(actual[0], expected[-1], atol=TOLERANCE)


def test_to_the_end_of_the_context(pair: Pair) -> None:
    tokens = (PROMPT * 2)[:CONTEXT]
    chunks = chunk_lengths(CONTEXT, pair.runner.capabilities.prefill_chunks)
    actual = logits_in_chunks(pair.runner, tokens, list(chunks))
    np.testing.assert_allclose(actual, pair.reference.logits(tokens), atol=TOLERANCE)
