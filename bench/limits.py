"""What a machine allows at best: bytes that a step must read, over the bandwidth at which memory gives them."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from workers.checkpoint import ModelConfig
from workers.runner import Runner

BLOCK = 512 << 20
"""Bytes that one pass reads: more than any cache holds."""


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What one decode step reads, in bytes."""

    weights: int
    """All matrices, the head included. Of the embedding a step reads a few rows, which are left out."""
    kv_row: int
    """Keys and values of one position in all layers."""

    def total(self, rows: int, context: float) -> float:
        """For `rows` sequences of `context` positions each."""
        return self.weights + rows * context * self.kv_row

    def seconds(self, rows: int, context: float, bandwidth: float) -> float:
        """The least time of a step: it can be beaten only by what stays in the CPU's caches between steps."""
        return self.total(rows, context) / bandwidth


ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2}


def step_bytes(config: ModelConfig, runner: Runner) -> StepBytes:
    """What a step reads of what a runner holds: all weights but the embedding, and the KV of the positions attended."""
    itemsize = ITEMSIZES[runner.capabilities.dtype]
    embedding = config.vocab_size * config.hidden_size * itemsize
    kv_row = 2 * config.layers * config.kv_heads * config.head_dim * itemsize
    return StepBytes(runner.memory()["weights"] - embedding, kv_row)


def read_bandwidth(threads: int, passes: int = 8) -> float:
    """Bytes a second that `threads` threads read from memory together: the fastest of several passes over 512 MiB."""
    block = np.ones(BLOCK // 8, np.int64)
    parts = np.array_split(block, threads)
    with ThreadPoolExecutor(threads) as pool:

        def once() -> float:
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            return block.nbytes / (time.perf_counter() - start)

        return max(once() for _ in range(passes))
