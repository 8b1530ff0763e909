"""What a machine allows at best: a step's bytes over the bandwidth of memory, its multiply-adds over their peak.

The larger of the two times is the roofline's bound (https://doi.org/10.1145/1498765.1498785).
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from workers.checkpoints.architectures.tensors import tensors
from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.runner import Runner

BLOCK = 512 << 20
"""Bytes that one pass reads: more than any cache holds."""
PASSES = 8
"""Of which the fastest is what memory gives."""


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
    # A tied embedding of few bits is the head, which is read whole.
    shared = config.tie_embeddings and bool(runner.capabilities.quantization)
    embedding = 0 if shared else config.vocab_size * config.hidden_size * itemsize
    kv_row = 2 * config.layers * config.kv_heads * config.head_dim * itemsize
    return StepBytes(runner.memory()["weights"] - embedding, kv_row)


@dataclass(frozen=True, slots=True)
class Work:
    """What one step cannot do without."""

    read: float = 0.0
    """Bytes."""
    multiply_adds: float = 0.0
    """In float32; 0 where they are not counted, as those of integers."""

    def seconds(self, bandwidth: float, peak: float) -> float:
        """The least time, where memory and arithmetic go on side by side."""
        return max(self.read / bandwidth, self.multiply_adds / peak)

    def bound(self, bandwidth: float, peak: float) -> str:
        """Which of the two it is that takes so long."""
        return "memory" if self.read / bandwidth >= self.multiply_adds / peak else "arithmetic"


def multiply_adds(config: ModelConfig, rows: int, positions: float, drawn: int) -> float:
    """Of a step of a dense model: `rows` rows that see `positions` positions each, `drawn` of which get logits."""
    sizes = {each.name: sum(size[0] * size[1] for _, size in each.sources) for each in tensors(config) if each.matrix}
    layers = sum(size for name, size in sizes.items() if name not in ("embedding", "head"))
    attention = 2 * config.layers * config.heads * config.head_dim * positions
    return rows * (layers + attention) + drawn * sizes["head"]


class MemoryReader:
    """Threads that read a block of memory together."""

    def __init__(self, threads: int, size: int = BLOCK) -> None:
        """`size` is the block's, in bytes: more than a cache holds, or what is measured is the cache."""
        self._block = np.ones(size // 8, np.int64)
        self._parts = np.array_split(self._block, threads)
        self._pool = ThreadPoolExecutor(threads)

    def bandwidth(self) -> float:
        """Bytes a second, of one pass."""
        start = time.perf_counter()
        list(self._pool.map(np.max, self._parts))
        return self._block.nbytes / (time.perf_counter() - start)

    def best(self, passes: int) -> float:
        """The same, of the fastest of so many."""
        return max(self.bandwidth() for _ in range(passes))

    def close(self) -> None:
        self._pool.shutdown()


def read_bandwidth(threads: int, passes: int = PASSES) -> float:
    """Bytes a second that `threads` threads read from memory together: the fastest of several passes over 512 MiB."""
    with closing(MemoryReader(threads)) as reader:
        return reader.best(passes)
