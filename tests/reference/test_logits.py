"""Logits and greedy tokens of both runners against transformers, for every family and kind of checkpoint."""

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.request import Sampling
from tests.reference.conftest import CONTEXT, PROMPT, Pair
from workers.runner import Chunk, Draw, Row, Runner
from workers.scheduler import cut

pytestmark = pytest.mark.reference

TOLERANCE = 2e-4
"""Of logits with a standard deviation of 0.5 to 2, in float32."""


def logits_in_chunks(runner: Runner, slot: int, tokens: tuple[int, ...], lengths: list[int]) -> NDArray[np.float32]:
    """The logits of all tokens, computed in chunks of these lengths, repeated."""
    runner.reset(slot)
    parts: list[NDArray[np.float32]] = []
    start = 0
    while start < len(tokens):
        length = lengths[len(parts) % len(lengths)]
        parts.append(runner.logits(Chunk(slot, tokens[start : start + length], start, start)))
        start += length
    return np.concatenate(parts)


def test_prefill(pair: Pair) -> None:
    chunks = cut(len(PROMPT), pair.runner.capabilities.prefill_chunks)
    actual = logits_in_chunks(pair.runner, 0, PROMPT, list(chunks))
    expected = pair.reference.logits(PROMPT)
    assert expected.std() > 0.3
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)


def test_prefill_across_chunk_boundaries(pair: Pair) -> None:
    smallest = pair.runner.capabilities.prefill_chunks[0]
    actual = logits_in_chunks(pair.runner, 1, PROMPT, [smallest, smallest - 1, 1, 5])
    np.testing.assert_allclose(actual, pair.reference.logits(PROMPT), atol=TOLERANCE)


@pytest.mark.parametrize("length", [5, 60])
def test_decode(pair: Pair, length: int) -> None:
    """Greedy tokens, and the logits over the cache rows that decode steps wrote, beyond position 64."""
    steps, prompt = 36, PROMPT[:length]
    pair.runner.reset(2)
    sampling = Sampling()
    tokens = [pair.runner.prefill(Chunk(2, prompt, 0, 0), Draw(sampling, length))]
    for position in range(length, length + steps - 1):
        token = tokens[-1]
        assert token is not None
        tokens += pair.runner.decode([Row(2, token, position, position, Draw(sampling, position + 1))])
    assert tokens == pair.reference.greedy(prompt, steps)
    assert len(set(tokens)) > 8
    last = length + steps - 1
    actual = pair.runner.logits(Chunk(2, (tokens[-1],), last, last))  # type: ignore[arg-type]
    expected = pair.reference.logits((*prompt, *tokens))  # type: ignore[arg-type]
    np.testing.assert_allclose(actual[0], expected[-1], atol=TOLERANCE)


def test_to_the_end_of_the_context(pair: Pair) -> None:
    tokens = (PROMPT * 2)[:CONTEXT]
    chunks = cut(CONTEXT, pair.runner.capabilities.prefill_chunks)
    actual = logits_in_chunks(pair.runner, 0, tokens, list(chunks))
    np.testing.assert_allclose(actual, pair.reference.logits(tokens), atol=TOLERANCE)
