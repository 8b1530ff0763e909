"""Cosines of vectors, beside other requests and in little memory."""

import tracemalloc
from array import array

import anyio
import anyio.lowlevel
import pytest

from gateway.generation.delta import VectorDelta
from gateway.openai.rerank.similarity import AT_ONCE, PairScores

pytestmark = pytest.mark.anyio
WIDTH = 4096


async def test_large_vectors_leave_turns_and_take_the_memory_of_few() -> None:
    """Others get a turn after `AT_ONCE` numbers, and no document's vector is kept beside the next ones."""
    vectors = [array("f", [1.0 + index, *[0.5] * (WIDTH - 1)]).tobytes() for index in range(40)]
    deltas = [VectorDelta(index, vector) for index, vector in enumerate(vectors)]
    scores, turns = PairScores([(0, index) for index in range(40)]), 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    tracemalloc.start()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(count)
            await scores.prepare(deltas)
            group.cancel_scope.cancel()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert turns >= 40 * 2 * WIDTH // AT_ONCE - 1
    assert peak < 10 * 8 * WIDTH + 500_000  # bytes; all 40 would take 5 MB as floats
    assert scores.values[0] == pytest.approx(1)
    assert scores.values == sorted(scores.values, reverse=True)
