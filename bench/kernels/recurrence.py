"""Time of the recurrence alone, of all layers of a step, beside the time to move their states to and from memory.

    python bench/kernels/recurrence.py [--shapes qwen3.5-0.8b granite-4.0-h-350m] [--rows 1 8] [--prompts 128 512]

One graph for each number of rows has the delta rule or the selective state of all layers of a model, without what is
around it: convolutions, gates, norms and projections. Decode rows are of a slot each, and the rows of a prompt of one.
Milliseconds, medians; "states alone" is the time to read and write the states once, at the speed of reading memory.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import numpy as np

from bench.harness.command_line import at_least, command_line, parsed
from bench.measurement.limits import BLOCK, SMOKE_BLOCK, read_bandwidth
from workers.checkpoints.architectures.parts import GatedDelta, Mamba2
from workers.host.topology import usable_cores
from workers.iree.build.compiler import Compiler
from workers.iree.build.lower import Graph, lower_module, struct
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device, Module
from workers.iree.kernels.ir.arithmetic import arithmetic_of
from workers.iree.model.ops import MambaWeights, Recurrence, StepRows
from workers.iree.model.tiled_ops import TiledOps

SHAPES: dict[str, tuple[int, GatedDelta | Mamba2]] = {
    "qwen3.5-0.8b": (18, GatedDelta(16, 16, 128, 128, 4)),
    "granite-4.0-h-350m": (28, Mamba2(48, 32, 1, 128, 4)),
    "tiny": (2, GatedDelta(1, 1, 16, 16, 4)),
}
"""Recurrent layers, and the sizes of one."""


class RecurrentLayers:
    """The recurrence of all layers, for a number of rows: of as many slots, or of one."""

    def __init__(self, device: Device, folder: Path, shape: str, rows: int, slots: int) -> None:
        self._layers, self._sizes = SHAPES[shape]
        self._device, self._rows, self._slots = device, rows, slots
        sizes = self._sizes
        others = (2 * sizes.value_heads,) if isinstance(sizes, GatedDelta) else (sizes.projected,)
        heads = sizes.value_heads if isinstance(sizes, GatedDelta) else sizes.heads
        self._widths, self._heads = (sizes.channels, *others), heads
        self._graph = self._load(Compiler(folder, device.compile_flags(), device.compile_target()))
        random = np.random.default_rng(0)
        self._inputs = [device.upload(random.standard_normal((rows, width), np.float32)) for width in self._widths]
        self._inputs.append(device.upload(random.standard_normal((3, heads), np.float32)))
        places = np.arange(rows) if slots > 1 or rows == 1 else np.zeros(rows)
        self._inputs.append(device.upload(np.stack([places, places]).astype(np.int32)))
        self._states = device.zeros(self._states_shape, "float32")
        if self._states.window is not None:
            self._states.window[...] = 0.0  # pages of memory that were never written would all be one

    @property
    def _states_shape(self) -> tuple[int, int]:
        return self._slots, self._layers * self._sizes.state_values

    def _load(self, compiler: Compiler) -> Module:
        ops = TiledOps("bfloat16", arithmetic_of(Cpu.of_host().features, "bfloat16"), threads=self._device.threads)
        sizes = self._sizes
        none = jax.numpy.zeros((self._slots, self._rows // self._slots), "int32")
        step = StepRows(none[:, 0], none)  # CPUs read the shape alone

        def main(
            x: jax.Array, other: jax.Array, constants: jax.Array, places: jax.Array, states: jax.Array, _: Any
        ) -> tuple[jax.Array, ...]:
            out = x
            for layer in range(self._layers):
                recurrence = Recurrence(states, layer * sizes.state_values, 1 << 20, places)
                if isinstance(sizes, GatedDelta):
                    out, states = ops.gated_delta(x, other, (constants[0], constants[1]), sizes, recurrence, step)
                else:
                    weights = MambaWeights(constants[0], constants[1], constants[2])
                    out, states = ops.selective_state(x, other, weights, sizes, recurrence, step)
            return out, states

        shapes = [*((self._rows, width) for width in self._widths), (3, self._heads)]
        inputs = (*(struct(shape, "float32") for shape in shapes), struct((2, self._rows), "int32"))
        graph = Graph("main", main, (*inputs, struct(self._states_shape, "float32")), in_place=((4, 1),), pure=True)
        jax.eval_shape(graph.function, *graph.inputs, {})  # tracing tells which kernels there are
        return self._device.load(compiler.compile(lower_module([graph], {}, ops.bodies)), None, "")

    @property
    def state_bytes(self) -> int:
        """Bytes that are read, and as many that are written."""
        values = self._layers * (self._sizes.state_values - (self._sizes.taps - 1) * self._sizes.channels)
        return 4 * values * self._slots

    def measure(self, rounds: int) -> float:
        """Seconds of one step."""
        seconds = []
        for _ in range(rounds):
            began = time.perf_counter()
            self._graph.call("main", *self._inputs, self._states.view)
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds)


def lines(args: argparse.Namespace, device: Device, folder: Path) -> Iterator[str]:
    """Yield the table's lines."""
    for shape in args.shapes:
        steps = [("decode", rows, rows) for rows in args.rows] + [("prompt", rows, 1) for rows in args.prompts]
        for kind, rows, slots in steps:
            layers = RecurrentLayers(device, folder, shape, rows, slots)
            bandwidth = read_bandwidth(usable_cores(), 3, SMOKE_BLOCK if args.smoke else BLOCK)
            memory, seconds = 2 * layers.state_bytes / bandwidth, layers.measure(args.rounds)
            yield f"{shape:>20} {kind} {rows:5} {1e3 * seconds:8.2f} {1e3 * memory:8.2f} {seconds / memory:8.2f}x"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    shapes = [name for name in SHAPES if name != "tiny"]
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=shapes, help="the models")
    parser.add_argument("--rows", type=at_least(1), nargs="+", default=[1, 8], help="of a decode step")
    parser.add_argument("--prompts", type=at_least(1), nargs="+", default=[128, 512], help="rows of a prompt's step")
    parser.add_argument("--rounds", type=at_least(1), default=15, help="steps of each figure; medians are printed")
    return parsed(parser, words, smoke={"shapes": ["tiny"], "rows": [2], "prompts": [4], "rounds": 2})


def main() -> None:
    args = arguments()
    device = Device("", usable_cores())
    print("               shape   step rows      ms   states alone  of that")
    with tempfile.TemporaryDirectory() as folder:
        for line in lines(args, device, Path(folder)):
            print(line, flush=True)
    device.close()


if __name__ == "__main__":
    main()
