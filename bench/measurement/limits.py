"""The limits of a machine: a step's bytes over the memory bandwidth, and its multiply-adds over their peak.

The larger of the two times is the bound of the roofline model (https://doi.org/10.1145/1498765.1498785).
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from workers.checkpoints.architectures.tensors import tensors
from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.runner import Runner

BLOCK, SMOKE_BLOCK = 512 << 20, 8 << 20
"""Bytes that one pass reads: more than any cache holds, and with `--smoke` as many as are quick to read."""
PASSES = 8
"""Repetitions of a measurement. The fastest counts."""


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes that one decode step reads."""

    weights: int
    """All matrices, the head included. Of the embedding a step reads a few rows, which are left out."""
    kv_row: int
    """Keys and values of one position in all layers."""

    def total(self, rows: int, context: float) -> float:
        """For `rows` sequences of `context` positions each."""
        return self.weights + rows * context * self.kv_row


ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2}


def step_bytes(config: ModelConfig, runner: Runner) -> StepBytes:
    """The bytes of a step of a loaded runner: all weights but the embedding, and the KV of the positions attended."""
    itemsize = ITEMSIZES[runner.capabilities.dtype]
    # A tied quantized embedding is also the head, which is read whole.
    shared = config.tie_embeddings and bool(runner.capabilities.quantization)
    embedding = 0 if shared else config.vocab_size * config.hidden_size * itemsize
    kv_row = 2 * config.layers * config.kv_heads * config.head_dim * itemsize
    return StepBytes(runner.memory()["weights"] - embedding, kv_row)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one step that no implementation avoids."""

    read: float = 0.0
    """Bytes."""
    multiply_adds: float = 0.0
    """In float32; 0 if they are not counted, as in integer matmuls."""

    def seconds(self, bandwidth: float, peak: float) -> float:
        """The minimum time, if memory and arithmetic overlap."""
        return max(self.read / bandwidth, self.multiply_adds / peak)

    def bound(self, bandwidth: float, peak: float) -> str:
        """The one that takes longer: memory or arithmetic."""
        return "memory" if self.read / bandwidth >= self.multiply_adds / peak else "arithmetic"


def multiply_adds(config: ModelConfig, rows: int, positions: float, sampled: int) -> float:
    """Multiply-adds of a step of a dense model: `rows` rows at `positions` positions each, `sampled` of which get
    logits."""
    sizes = {each.name: sum(size[0] * size[1] for _, size in each.sources) for each in tensors(config) if each.matrix}
    layers = sum(size for name, size in sizes.items() if name not in ("embedding", "head"))
    attention = 2 * config.layers * config.heads * config.head_dim * positions
    return rows * (layers + attention) + sampled * sizes["head"]


class MemoryReader:
    """Threads that read a block of memory together."""

    def __init__(self, threads: int, size: int = BLOCK) -> None:
        """`size` is the block's, in bytes: if it fits into a cache, the cache is measured."""
        self._block = np.ones(size // 8, np.int64)
        self._parts = np.array_split(self._block, threads)
        self._pool = ThreadPoolExecutor(threads)

    def bandwidth(self) -> float:
        """Bytes a second of one pass."""
        start = time.perf_counter()
        list(self._pool.map(np.max, self._parts))
        return self._block.nbytes / (time.perf_counter() - start)

    def best(self, passes: int) -> float:
        """Bytes a second of the fastest of `passes` passes."""
        return max(self.bandwidth() for _ in range(passes))

    def close(self) -> None:
        self._pool.shutdown()


def read_bandwidth(threads: int, passes: int = PASSES, size: int = BLOCK) -> float:
    """Bytes a second that `threads` threads read together from a block of `size` bytes: the fastest of the passes."""
    with closing(MemoryReader(threads, size)) as reader:
        return reader.best(passes)
