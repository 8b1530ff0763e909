"""The cost of paged KV: attention over a slot's own rows, beside attention over rows that are gathered from pages.

    python bench/kernels/paging.py [--slots 8] [--positions 256 1024 4096]

One layer of the 110m shape's attention (12 heads on 4 KV heads of 64 lanes) for one decode row of each slot, on the
CPU. `slots` reads the rows where they are, as the engine does. `pages` looks them up in a table, 16 rows a page, and
gathers them before the same kernel runs. Milliseconds, medians.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import numpy as np

from bench.harness.command_line import at_least, command_line, parsed
from workers.host.topology import usable_cores
from workers.iree.build.compiler import Compiler
from workers.iree.build.lower import Graph, lower_module, struct
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device
from workers.iree.kernels.attention.shape import CAPACITY_MULTIPLE
from workers.iree.kernels.ir.arithmetic import arithmetic_of
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.model.kv_layout import KvLayout
from workers.iree.model.ops import StepRows
from workers.iree.model.tiled_ops import TiledOps

HEADS, KV_HEADS, DEPTH = 12, 4, 64
LAYER = SimpleNamespace(window=None, rope=None, kind="attention")
MODEL: Any = SimpleNamespace(
    heads=HEADS,
    attention_scale=DEPTH**-0.5,
    attention_cap=None,
    sinks=False,
    plan=[LAYER],
    kv_index=lambda number: number,
)
"""The fields of a model's config that the attention reads."""


def graphs(ops: TiledOps, cache: KvLayout, positions: int) -> list[Graph]:
    """The graphs `slots` and `pages`: packed queries, cache, slots, rows (and a table) -> packed outputs."""
    batch, pages_of_head = cache.slots, positions // LANES

    def slots(q: jax.Array, kv: jax.Array, who: jax.Array, rows: jax.Array, _: Any) -> tuple[jax.Array, ...]:
        return (ops.attend(q, kv, cache, 0, MODEL, StepRows(who, rows)),)

    def pages(
        q: jax.Array, kv: jax.Array, who: jax.Array, rows: jax.Array, table: jax.Array, _: Any
    ) -> tuple[jax.Array, ...]:
        """A page holds 16 rows of one head: keys [depth / k, 16, k], values [depth / 16, 16 / k, 16, k]."""
        flat = kv.reshape(2, -1, LANES * DEPTH)
        taken = jnp.take(flat, table.reshape(-1), axis=1)
        keys = taken[0].reshape(batch, KV_HEADS, positions * DEPTH)
        values = taken[1].reshape(batch, KV_HEADS, pages_of_head, DEPTH // LANES, LANES * LANES).swapaxes(2, 3)
        own = jnp.stack([keys, values.reshape(keys.shape)])[None]
        # The kernel reads up to a tile beyond the rows.
        own = jnp.pad(own, ((0, 0),) * 4 + ((0, CAPACITY_MULTIPLE * DEPTH),))
        dense = KvLayout(1, batch, KV_HEADS, DEPTH, positions + CAPACITY_MULTIPLE, CAPACITY_MULTIPLE)
        return (ops.attend(q, own, dense, 0, MODEL, StepRows(who, rows)),)

    words = struct((batch, HEADS * DEPTH // ops.arithmetic.per_word), "int32")
    kv, who, rows = struct(cache.shape, ops.dtype), struct((batch,), "int32"), struct((batch, 1), "int32")
    table = struct((batch, KV_HEADS, pages_of_head), "int32")
    return [
        Graph("slots", slots, (words, kv, who, rows), pure=True),
        Graph("pages", pages, (words, kv, who, rows, table), pure=True),
    ]


def measure(ops: TiledOps, positions: int, slots: int, device: Device, compiler: Compiler, rounds: int) -> list[float]:
    """Median milliseconds of each graph."""
    cache = KvLayout(1, slots, KV_HEADS, DEPTH, positions + CAPACITY_MULTIPLE, CAPACITY_MULTIPLE)
    random = np.random.default_rng(0)
    kv = device.zeros(cache.shape, ops.dtype)
    if kv.window is not None:
        kv.window[...] = 1  # pages of memory that were never written would all be one
    order = random.permutation(slots * KV_HEADS * (cache.capacity // LANES))[: slots * KV_HEADS * (positions // LANES)]
    inputs = [
        device.upload(np.zeros((slots, HEADS * DEPTH // ops.arithmetic.per_word), np.int32)),
        kv.view,
        device.upload(np.arange(slots, dtype=np.int32)),
        device.upload(np.full((slots, 1), positions - 1, np.int32)),
        device.upload(order.astype(np.int32).reshape(slots, KV_HEADS, -1)),
    ]
    medians = []
    for graph in graphs(ops, cache, positions):
        jax.eval_shape(graph.function, *graph.inputs, {})  # tracing tells which kernels there are
        loaded = device.load(compiler.compile(lower_module([graph], {}, ops.bodies)), None, "")
        seconds = []
        for _ in range(rounds):
            began = time.perf_counter()
            device.download(loaded.call(graph.name, *inputs[: len(graph.inputs)])[0])
            seconds.append(time.perf_counter() - began)
        medians.append(1e3 * statistics.median(seconds))
    return medians


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--slots", type=at_least(1), default=8, help="rows of a step, one of each slot")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="of the KV")
    parser.add_argument("--rounds", type=at_least(1), default=50, help="steps of each figure; medians are printed")
    parser.add_argument(
        "--positions", type=at_least(1), nargs="+", default=[256, 1024, 4096], help="tokens that each row has behind it"
    )
    return parsed(parser, words, smoke={"slots": 2, "positions": [256], "rounds": 2})


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        device = Device("", usable_cores())
        compiler = Compiler(Path(folder), device.compile_flags(), device.compile_target())
        print(f"{'positions':>9} {'slots':>9} {'pages':>9}   ms a layer, {args.slots} rows")
        for positions in args.positions:
            ops = TiledOps(args.dtype, arithmetic_of(Cpu.of_host().features, args.dtype))
            medians = measure(ops, positions, args.slots, device, compiler, args.rounds)
            print(f"{positions:9} " + " ".join(f"{value:9.3f}" for value in medians), flush=True)


if __name__ == "__main__":
    main()
