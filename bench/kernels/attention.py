"""Time of attention alone, in all layers of a decode step, beside the time to read its keys and values from memory.

    python bench/kernels/attention.py [--model 0.5b] [--rows 1 4 8 16] [--positions 256 1000 4000 8000] [--one-slot]

One graph for each number of rows: the attention of all layers, each on the output of the one before. Milliseconds,
medians. With `--one-slot` the rows are the last ones of a single slot, as those of drafts are.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import numpy as np

from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.options import add_model
from bench.harness.shapes import SHAPES
from bench.measurement.limits import BLOCK, SMOKE_BLOCK, read_bandwidth
from workers.host.topology import usable_cores
from workers.iree.build.compiler import Compiler
from workers.iree.build.lower import Graph, lower_module, struct
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device, Module
from workers.iree.kernels.attention.shape import CAPACITY_MULTIPLE
from workers.iree.kernels.ir.arithmetic import arithmetic_of
from workers.iree.model.kv_layout import KvLayout
from workers.iree.model.ops import StepRows
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.model.width_padding import PaddedAxis

DTYPE = "bfloat16"


class AttentionGraph:
    """A model's attention for a number of rows, each in a slot of its own, or all in one."""

    def __init__(
        self, device: Device, folder: Path, model: str, rows: int, longest: int, *, one_slot: bool = False
    ) -> None:
        shape: dict[str, Any] = SHAPES[model]
        depth, self._heads = PaddedAxis.whole(shape["head_dim"]).padded, shape["heads"]
        capacity = -(-longest // CAPACITY_MULTIPLE) * CAPACITY_MULTIPLE + CAPACITY_MULTIPLE
        self._cache = KvLayout(shape["layers"], rows, shape["kv_heads"], depth, capacity, CAPACITY_MULTIPLE)
        self._device, self._rows = device, rows
        self._graph = self._load(Compiler(folder, device.compile_flags(), device.compile_target()))
        self._kv = device.zeros(self._cache.shape, DTYPE)
        if self._kv.window is not None:
            self._kv.window[...] = 1  # pages of memory that were never written would all be one
        self._q = device.upload(np.zeros((rows, self._width), np.int32))
        own = np.arange(rows, dtype=np.int32)
        self._slots = device.upload(own * 0 if one_slot else own)
        self._behind = own[::-1, None] if one_slot else 0 * own[:, None]
        """Positions that a row is behind the last one."""

    def _load(self, compiler: Compiler) -> Module:
        cache, layer = self._cache, SimpleNamespace(window=None, rope=None, kind="attention")
        config: Any = SimpleNamespace(
            heads=self._heads,
            attention_scale=1.0,
            attention_cap=None,
            sinks=False,
            plan=[layer] * cache.layers,
            kv_index=lambda number: number,
        )
        ops = TiledOps(DTYPE, arithmetic_of(Cpu.of_host().features, DTYPE), threads=self._device.threads)
        self._width = self._heads * cache.head_dim // ops.arithmetic.per_word

        def main(q: jax.Array, slots: jax.Array, at: jax.Array, kv: jax.Array, _: Any) -> tuple[jax.Array, ...]:
            for number in range(cache.layers):
                q = ops.attend(q, kv, cache, number, config, StepRows(slots, at))[:, : self._width]
            return (q,)

        inputs = [((self._rows, self._width), "int32"), ((self._rows,), "int32"), ((self._rows, 1), "int32")]
        graph = Graph("main", main, tuple(struct(*each) for each in [*inputs, (cache.shape, DTYPE)]), pure=True)
        jax.eval_shape(graph.function, *graph.inputs, {})  # tracing tells which kernels there are
        return self._device.load(compiler.compile(lower_module([graph], {}, ops.bodies)), None, "")

    def kv_bytes(self, positions: int) -> int:
        """Bytes of keys and values that one step reads."""
        slots = 1 if self._behind.any() else self._rows
        return 2 * slots * positions * self._cache.row_values

    def measure(self, positions: int, rounds: int) -> float:
        """Seconds of one step."""
        at = self._device.upload(np.maximum(positions - 1 - self._behind, 0).astype(np.int32))
        seconds = []
        for _ in range(rounds):
            began = time.perf_counter()
            self._graph.call("main", self._q, self._slots, at, self._kv.view)
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds)


def lines(args: argparse.Namespace, device: Device, folder: Path, rows: int) -> Iterator[str]:
    """Yield the table's line for each number of positions."""
    attention = AttentionGraph(device, folder, args.model, rows, max(args.positions), one_slot=args.one_slot)
    for count in args.positions:
        bandwidth = read_bandwidth(usable_cores(), 3, SMOKE_BLOCK if args.smoke else BLOCK)
        memory, seconds = attention.kv_bytes(count) / bandwidth, attention.measure(count, args.rounds)
        yield f"{rows:5} {count:9} {1e3 * seconds:8.2f} {1e3 * memory:8.2f} {seconds / memory:8.2f}x"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "0.5b")
    parser.add_argument(
        "--rows", type=at_least(1), nargs="+", default=[1, 4, 8, 16], help="rows of a step, each a graph"
    )
    parser.add_argument(
        "--positions",
        type=at_least(1),
        nargs="+",
        default=[256, 1000, 4000, 8000],
        help="tokens that each row has behind it",
    )
    parser.add_argument("--one-slot", action="store_true", help="all rows are of one slot, as those of drafts are")
    parser.add_argument("--rounds", type=at_least(1), default=15, help="steps of each figure; medians are printed")
    return parsed(parser, words, smoke={"model": "tiny", "rows": [1, 2], "positions": [64], "rounds": 2})


def main() -> None:
    args = arguments()
    device = Device("", usable_cores())
    print(" rows positions       ms   memory  of that")
    with tempfile.TemporaryDirectory() as folder:
        for rows in args.rows:
            for line in lines(args, device, Path(folder), rows):
                print(line, flush=True)
    device.close()


if __name__ == "__main__":
    main()
