"""The vision tower of Qwen3-VL-2B's shape on IREE, with random weights: the time to encode one image.

    python bench/kernels/vision.py [--patches 4096] [--layers 24] [--dtype bfloat16] [--rounds 3]

An image of 1024 x 1024 pixels has 4,096 patches, which become 1,024 tokens. Shown are the time of its computation, of
its longest part, which the streams of others wait for, and of each graph, and how much of the multiply-adds of a matrix
product alone that is: a product of one block of patches with the first matrix of the MLP, measured before and after.
The language model is not measured.
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.options import add_cache_dir
from workers.host.topology import usable_cores
from workers.iree.build.compiler import Compiler
from workers.iree.build.lower import Graph, lower_module, struct
from workers.iree.build.tower_graphs import TowerGraphs
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device
from workers.iree.kernels.ir.arithmetic import arithmetic_of
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.vision.encoder import IreeVision
from workers.vision.config import Merger, VisionConfig
from workers.vision.parameters import parameter_shapes
from workers.vision.patches import ImagePatches

HIDDEN, MLP, HEADS, OUTPUT, GROUP, VALUES = 1024, 4096, 16, 2048, 4, 1536
PASSES = 20
SMOKE = {"patches": 64, "layers": 1, "rounds": 1}


def tower_config(layers: int) -> VisionConfig:
    """The tower of Qwen3-VL-2B, with fewer layers if asked for; three of them are tapped."""
    taps = tuple(sorted({layer for layer in (5, 11, 17) if layer < layers}))
    merger, tap = (Merger("concat", "layer", each, 1e-6, GROUP * HIDDEN, "gelu", True) for each in (True, False))
    return VisionConfig(
        family="qwen3_vl", patch_values=VALUES, layers=layers, hidden=HIDDEN, heads=HEADS, head_dim=HIDDEN // HEADS,
        mlp=MLP, norm="layer", eps=1e-6, activation="gelu_tanh", gated=False, biases=True,
        scale=(HIDDEN // HEADS) ** -0.5, group=GROUP, merger=merger, output=OUTPUT, rope_theta=10000.0, table=(48, 48),
        table_kind="interpolated", taps=taps, tap_merger=tap if taps else None,
    )  # fmt: skip


def multiply_adds(config: VisionConfig, patches: int) -> dict[str, int]:
    """Multiply-adds of an image by graph, those of all calls together."""
    hidden, merged = config.hidden, config.group * config.hidden
    merge = patches // config.group * (merged * merged + merged * config.output)
    own = 2 * patches * hidden + hidden * hidden + 2 * hidden * config.mlp
    return {
        "embed": patches * config.patch_values * hidden,
        "keys": config.layers * patches * 3 * hidden * hidden,
        "layer": config.layers * patches * own,
        "merge": merge,
        "tap": len(config.taps) * merge,
    }


class Product:
    """One product of a block of patches with the first matrix of an MLP."""

    def __init__(self, device: Device, compiler: Compiler, ops: TiledOps, block: int) -> None:
        shapes = (ops.operand(block, HIDDEN), (ops.stored_shape(MLP, HIDDEN), ops.dtype))

        def product(x: Any, weight: Any, _: Any) -> tuple[Any, ...]:
            return (ops.linear(x, weight, MLP),)

        graph = Graph("product", product, tuple(struct(*each) for each in shapes), pure=True)
        self._module = device.load(compiler.compile(lower_module([graph], {}, ops.bodies)), None, "")
        self._arguments = [device.zeros(*each) for each in shapes]
        self._count = block * HIDDEN * MLP

    def measure(self) -> float:
        """Multiply-adds a second: the fastest of some passes."""
        return self._count / min(self._once() for _ in range(PASSES))

    def _once(self) -> float:
        began = time.perf_counter()
        self._module.call("product", *(each.view for each in self._arguments))
        return time.perf_counter() - began


def random_image(config: VisionConfig, patches: int) -> ImagePatches:
    places = np.stack([np.arange(patches) // 64, np.arange(patches) % 64], axis=1).astype(np.int32)
    values = np.random.default_rng(0).standard_normal((patches, config.patch_values), dtype=np.float32)
    return ImagePatches(values, (patches // 64, 64), places, b"", tokens=(patches // 64, 64 // config.group))


def encode(vision: IreeVision, image: ImagePatches) -> tuple[float, float, dict[str, float]]:
    """Compute an image: seconds in all, of the longest part, and by graph."""
    encoding, spent, longest = vision.begin(image), defaultdict[str, float](float), 0.0
    call = vision.call

    def timed(name: str, *arguments: Any) -> Any:
        began = time.perf_counter()
        results = call(name, *arguments)
        spent[name] += time.perf_counter() - began
        return results

    vision.call = timed  # type: ignore[method-assign]
    began, done = time.perf_counter(), False
    while not done:
        before = time.perf_counter()
        done = encoding.advance()
        longest = max(longest, time.perf_counter() - before)
    total = time.perf_counter() - began
    vision.call = call  # type: ignore[method-assign]
    encoding.rows()
    encoding.close()
    return total, longest, spent


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--patches", type=at_least(64), default=4096, help="patches of the image, a multiple of 64")
    parser.add_argument("--layers", type=at_least(1), default=24, help="layers of the tower")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="of the weights")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="images that are encoded")
    add_cache_dir(parser)
    args = parsed(parser, words, smoke=SMOKE)
    if args.patches % 64:
        parser.error("--patches: give a multiple of 64")
    return args


def main() -> None:
    args = arguments()
    config, threads, cpu = tower_config(args.layers), usable_cores(), Cpu.named("host")
    device = Device("local-task", threads)
    compiler = Compiler(args.cache_dir / "graphs", device.compile_flags(), device.compile_target())
    ops = TiledOps(args.dtype, arithmetic_of(cpu.features, args.dtype), threads=threads, pause=cpu.pause)
    graphs = TowerGraphs.of(config, ops)
    began = time.perf_counter()
    module = device.load(compiler.compile(graphs.module()), None, "")
    print(f"graphs after {time.perf_counter() - began:.1f} s")
    rng = np.random.default_rng(0)
    shapes = parameter_shapes(config).items()
    weights = {
        name: rng.standard_normal(shape, dtype=np.float32) * np.float32(shape[-1] ** -0.5) for name, shape in shapes
    }
    began = time.perf_counter()
    vision = IreeVision(device, graphs, module, weights)
    print(f"{vision.nbytes / 1e6:.0f} MB of weights packed in {time.perf_counter() - began:.1f} s")
    product = Product(device, compiler, ops, graphs.block)
    limits, image = [product.measure()], random_image(config, args.patches)
    rounds = [encode(vision, image) for _ in range(args.rounds)]
    limits.append(product.measure())
    total, longest = (
        statistics.median(times) for times in ([each[0] for each in rounds], [each[1] for each in rounds])
    )
    work, limit = multiply_adds(config, args.patches), max(limits)
    share = sum(work.values()) / limit / total
    print(
        f"{args.patches} patches: {total:.2f} s, longest part {1e3 * longest:.1f} ms, {share:.0%} of the product alone"
    )
    for name in rounds[0][2]:
        seconds = statistics.median(each[2][name] for each in rounds)
        print(f"{name:>8} {seconds:8.3f} s {work[name] / seconds / limit:6.0%}")
    print(f"a product alone does {' and '.join(f'{each / 1e9:.1f}' for each in limits)} billion multiply-adds a second")
    vision.close()
    del product, module
    device.close()


if __name__ == "__main__":
    main()
