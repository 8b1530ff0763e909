"""Time of mixtures of experts alone, of all layers of a step, beside the time to read the experts that rows choose.

    python bench/kernels/mixture.py [--shapes granite-moe-1b] [--rows 1 8] [--kinds bf16 int8]

One graph for each number of rows has the router, the products of the chosen experts and their sum, of layers with
weights of their own. Every row chooses anew by a random router. Milliseconds, medians; "experts alone" is the time to
read the experts that were chosen once, at the speed of reading memory.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from bench.harness.command_line import at_least, command_line, parsed
from bench.measurement.limits import BLOCK, SMOKE_BLOCK, read_bandwidth
from workers.checkpoints.architectures.parts import Experts
from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.quantized_matrix import quantize
from workers.host.topology import usable_cores
from workers.iree.build.compiler import Compiler
from workers.iree.build.lower import Graph, lower_module, struct
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device
from workers.iree.kernels.ir.arithmetic import arithmetic_of, row_stride
from workers.iree.kernels.matmul.integer_dots import choose_integer_dots
from workers.iree.kernels.matmul.packing import Packing, made_format
from workers.iree.model.packed_matrix import PackedMatrix
from workers.iree.model.tiled_ops import TiledOps

KINDS = ("bf16", "int8", "int4")


@dataclass(frozen=True, slots=True)
class MixtureShape:
    """The sizes of a model's mixtures."""

    layers: int
    """Layers to compute: more weights than caches hold, and not all of the model's."""
    hidden: int
    experts: Experts


SHAPES = {
    "granite-moe-1b": MixtureShape(6, 1024, Experts(32, 8, 512, normalize=True)),
    "qwen3-30b-a3b": MixtureShape(1, 2048, Experts(128, 8, 768, normalize=True)),
    "tiny": MixtureShape(2, 64, Experts(4, 2, 32, normalize=True)),
}


class MixtureLayers:
    """The mixtures of some layers, for a number of rows."""

    def __init__(self, device: Device, folder: Path, shape: MixtureShape, kind: str, rows: int) -> None:
        features = Cpu.of_host().features
        self._device, self._shape, self._rows = device, shape, rows
        self._ops = TiledOps(
            "bfloat16", arithmetic_of(features, "bfloat16"), choose_integer_dots(features), threads=device.threads
        )
        self._random = np.random.default_rng(0)
        experts, hidden = shape.experts, shape.hidden
        up, down = (experts.count * 2 * experts.ffn, hidden), (experts.count * hidden, experts.ffn)
        self._stored = [self._weights(size, kind) for size in (up, down)]
        self.expert_bytes = sum(each.nbytes for each, _ in self._stored) / experts.count
        self._routers = self._random.standard_normal((shape.layers, experts.count, hidden)).astype(ml_dtypes.bfloat16)
        each = [self._ops.store(router) for router in self._routers]
        uploaded = [self._upload(np.stack(each))]
        uploaded += [self._upload(stored) for _ in range(shape.layers) for stored, _ in self._stored]
        self._inputs = uploaded
        types = [struct((rows, row_stride(hidden, self._ops.arithmetic)), "int32")]
        types += [struct((shape.layers, *each[0].shape), "bfloat16")]
        types += [struct(stored.shape, stored.dtype.name) for _ in range(shape.layers) for stored, _ in self._stored]
        graph = Graph("main", self._main, tuple(types), pure=True)
        jax.eval_shape(graph.function, *graph.inputs, {})  # tracing tells which kernels there are
        compiler = Compiler(folder, device.compile_flags(), device.compile_target())
        self._graph = device.load(compiler.compile(lower_module([graph], {}, self._ops.bodies)), None, "")

    def _weights(self, shape: tuple[int, int], kind: str) -> tuple[NDArray[Any], Packing | None]:
        matrix = self._random.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5)
        format = None if kind == "bf16" else made_format("int8" if kind == "int8" else "int4", shape[1])
        if format is None:
            return self._ops.store(matrix.astype(ml_dtypes.bfloat16)), None
        packing = Packing(format)
        return packing.pack(quantize(matrix, format)), packing

    def _upload(self, stored: NDArray[Any]) -> Any:
        bits = stored.view(np.uint16) if stored.dtype == ml_dtypes.bfloat16 else stored
        return self._device.upload(bits, stored.dtype.name)

    def _main(self, x: jax.Array, routers: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
        config = cast(
            ModelConfig,
            SimpleNamespace(hidden_size=self._shape.hidden, experts=self._shape.experts, activation="silu"),
        )
        sums = []
        for layer in range(self._shape.layers):
            up, down = (
                data if packing is None else PackedMatrix(data, packing, inputs)
                for data, (_, packing), inputs in zip(
                    weights[2 * layer : 2 * layer + 2],
                    self._stored,
                    (self._shape.hidden, self._shape.experts.ffn),
                    strict=True,
                )
            )
            sums.append(self._ops.experts(x, routers[layer], up, down, config))
        return tuple(sums)

    def step(self) -> tuple[float, int]:
        """Return the seconds of a step, and how many experts its rows chose, of all layers."""
        x = self._random.standard_normal((self._rows, self._shape.hidden)).astype(ml_dtypes.bfloat16)
        logits = np.einsum("rh,leh->lre", x.astype(np.float32), self._routers.astype(np.float32))
        chosen = np.argsort(-logits)[..., : self._shape.experts.per_token]
        packed = np.zeros((self._rows, 2 * row_stride(self._shape.hidden, self._ops.arithmetic)), x.dtype)
        packed[:, : self._shape.hidden] = x
        operand = self._device.upload(packed.view(np.int32))
        began = time.perf_counter()
        self._graph.call("main", operand, *self._inputs)
        return time.perf_counter() - began, sum(len(set(layer.ravel().tolist())) for layer in chosen)


def lines(args: argparse.Namespace, device: Device, folder: Path) -> Iterator[str]:
    """Yield the table's lines."""
    for shape in args.shapes:
        for kind in args.kinds:
            for rows in args.rows:
                layers = MixtureLayers(device, folder, SHAPES[shape], kind, rows)
                bandwidth = read_bandwidth(usable_cores(), 3, SMOKE_BLOCK if args.smoke else BLOCK)
                layers.step()
                steps = [layers.step() for _ in range(args.rounds)]
                seconds = statistics.median(took for took, _ in steps)
                memory = statistics.median(chosen for _, chosen in steps) * layers.expert_bytes / bandwidth
                yield (
                    f"{shape:>20} {kind:>4} {rows:5} {1e3 * seconds:8.2f} {1e3 * memory:8.2f} {seconds / memory:8.2f}x"
                )


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=["granite-moe-1b"], help="the models")
    parser.add_argument("--rows", type=at_least(1), nargs="+", default=[1, 8], help="of a step")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["bf16", "int8"], help="of the weights")
    parser.add_argument("--rounds", type=at_least(1), default=25, help="steps of each figure; medians are printed")
    return parsed(parser, words, smoke={"shapes": ["tiny"], "rows": [2], "kinds": ["int8"], "rounds": 2})


def main() -> None:
    args = arguments()
    device = Device("", usable_cores())
    print("               shape kind  rows       ms  experts alone  of that")
    with tempfile.TemporaryDirectory() as folder:
        for line in lines(args, device, Path(folder)):
            print(line, flush=True)
    device.close()


if __name__ == "__main__":
    main()
