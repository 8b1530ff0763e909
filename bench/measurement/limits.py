"""The limits of a machine: a step's bytes over the memory bandwidth, and its multiply-adds over their peak.

The larger of the two times is the bound of the roofline model (https://doi.org/10.1145/1498765.1498785).
"""

import math
import time
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from workers.checkpoints.architectures.parts import Experts
from workers.checkpoints.architectures.tensors import size_of, tensors
from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.weight_size import layer_row_bytes
from workers.engine.runner import Runner
from workers.iree.model.decoder import TABLES, parameters

BLOCK, SMOKE_BLOCK = 512 << 20, 8 << 20
"""Bytes that one pass reads: more than any cache holds, and with `--smoke` as many as are quick to read."""
PASSES = 8
"""Repetitions of a measurement. The fastest counts."""
EXPERT_MATRICES = frozenset({"experts_gate_up", "experts_up", "experts_down"})
"""Those of all routed experts, of which a row reads the chosen ones; the shared one is apart."""


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes that one decode step reads, and of recurrent states those that it writes as well."""

    weights: int
    """Matrices that every step reads, the head included. Of the embedding a step reads a few rows, which are left
    out."""
    kv_row: int
    """Keys and values of one position in the layers that attend to all positions."""
    windows: tuple[tuple[int, int], ...] = ()
    """(positions of the attention window, bytes of one position) of each other layer that attends."""
    state: int = 0
    """Recurrent state of one sequence."""
    expert: float = 0.0
    """One expert of every layer that has experts."""
    experts: Experts | None = None

    def matrices(self, rows: int) -> float:
        """Weights of a step of `rows` rows: of a mixture the experts that are chosen at least once, on average, if
        every row chooses uniformly and independently."""
        if self.experts is None:
            return self.weights
        count = self.experts.count
        return self.weights + self.expert * count * (1 - (1 - self.experts.per_token / count) ** rows)

    def cache(self, rows: int, context: float) -> float:
        """KV and states of `rows` sequences of `context` positions each; states are read and written."""
        windows = sum(min(window, context) * size for window, size in self.windows)
        return rows * (context * self.kv_row + windows + 2 * self.state)

    def total(self, rows: int, context: float) -> float:
        """For `rows` sequences of `context` positions each."""
        return self.matrices(rows) + self.cache(rows, context)


ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2}


def step_bytes(config: ModelConfig, runner: Runner) -> StepBytes:
    """The bytes of a step of a loaded runner: its weights but the tables that rows are looked up in and the experts
    that no row chooses, the KV of the positions attended, and recurrent states.

    All quantized matrices are taken to have the same bits a weight.
    """
    itemsize, quantized = ITEMSIZES[runner.capabilities.dtype], bool(runner.capabilities.quantization)
    shared = config.tie_embeddings and quantized  # a tied quantized embedding is also the head, which is read whole
    found = [
        each for each in parameters(config, runner.capabilities.dtype) if not (shared and each.name == "embedding")
    ]
    levels = [each for each in found if quantized and each.quantizable]
    precise = sum(math.prod(each.shape) * ITEMSIZES[each.dtype] for each in found if each not in levels)
    width = (runner.memory()["weights"] - precise) / max(1, sum(math.prod(each.shape) for each in levels))

    def stored(names: Container[str]) -> float:
        chosen = (each for each in found if each.name.rpartition(".")[2] in names)
        return sum(math.prod(each.shape) * (width if each in levels else ITEMSIZES[each.dtype]) for each in chosen)

    experts = stored(EXPERT_MATRICES)
    full, windows = 0, []
    for number, layer in enumerate(config.plan):
        row = sum(layer_row_bytes(config, number, itemsize, "auto")) if layer.kind == "attention" else 0
        if layer.window is None:
            full += row
        elif row:
            windows.append((layer.window, row))
    return StepBytes(
        round(runner.memory()["weights"] - stored(TABLES) - experts),
        full,
        tuple(windows),
        config.state_bytes,
        experts / config.experts.count if config.experts else 0.0,
        config.experts,
    )


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
    """Multiply-adds of a step: `rows` rows at `positions` positions each, `sampled` of which get logits. Of a mixture
    those of the experts that a row chooses; those of recurrent states are left out."""
    layers = head = 0.0
    chosen = config.experts.per_token / config.experts.count if config.experts else 1.0
    for each in tensors(config):
        layer, _, name = each.name.rpartition(".")
        if name == "head":
            head = size_of(each)
        elif each.matrix and (layer or name not in TABLES):
            layers += size_of(each) * (chosen if name in EXPERT_MATRICES else 1.0)
    attention = 0.0
    for number, kind in enumerate(config.plan):
        if kind.kind == "attention":
            shape = config.kv_shape(number)
            attended = positions if kind.window is None else min(kind.window, positions)
            attention += config.heads * (shape.key_width + shape.value_width) * attended
    return rows * (layers + attention) + sampled * head


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
