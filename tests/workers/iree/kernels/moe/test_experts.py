"""Mixtures of experts against numpy: every kind of weights, and every row the same whatever is beside it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import jax
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.workers.iree.cpus import skip_unless_possible
from workers.checkpoints.architectures.parts import Experts
from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.quantized_matrix import GroupFormat, Quantized, quantize
from workers.iree.build.compiler import Compiler
from workers.iree.build.lower import Graph, lower_module, struct
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device, Module
from workers.iree.kernels.ir.arithmetic import Arithmetic, FloatFma, WidenedBf16, arithmetic_of, row_stride
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.partition import PARTITIONS_PER_THREAD
from workers.iree.kernels.matmul.integer_dots import PLAIN_DOTS, IntegerDots, choose_integer_dots
from workers.iree.kernels.matmul.linear import L2_WEIGHT_BYTES
from workers.iree.kernels.matmul.packing import Packing
from workers.iree.kernels.moe.experts import ExpertPartition
from workers.iree.kernels.moe.routing import Mixture
from workers.iree.lazy_jax import ArraySpec
from workers.iree.model.packed_matrix import PackedMatrix
from workers.iree.model.tiled_ops import TiledOps
from workers.precision import CpuTarget

HIDDEN, EXPERTS = 160, Experts(count=5, per_token=2, ffn=96, normalize=True)
"""10 tiles and 6: two at once. Five experts for up to 42 pairs."""
ROWS = (1, 5, 21)
"""Blocks of one pair, of up to four, and of up to eight."""
INT8, INT4 = GroupFormat(8, 32, "middle", "float16"), GroupFormat(4, 32, "bias", "float16")
FEATURES = Cpu.of_host().features


@dataclass(frozen=True)
class Kind:
    """The multiplication of a case: `up` and `down` are formats, None for weights as they are."""

    dtype: str
    arithmetic: Arithmetic
    dots: IntegerDots
    up: GroupFormat | None
    down: GroupFormat | None
    tolerance: float
    cpu: CpuTarget = "host"
    shared: Literal["none", "added", "gated"] = "none"
    """The way in which a shared expert's rows are added."""
    gated: bool = True

    @property
    def experts(self) -> Experts:
        return replace(EXPERTS, gated=self.gated)

    @property
    def config(self) -> ModelConfig:
        activation = "silu" if self.gated else "relu2"
        return cast(ModelConfig, SimpleNamespace(hidden_size=HIDDEN, experts=self.experts, activation=activation))


HOST, DOTS = arithmetic_of(FEATURES, "bfloat16"), choose_integer_dots(FEATURES)
KINDS = {
    "bfloat16": Kind("bfloat16", HOST, DOTS, None, None, 2e-2),
    "float32": Kind("float32", FloatFma("f32", 16), DOTS, None, None, 2e-6, shared="gated"),
    "int8": Kind("bfloat16", HOST, DOTS, INT8, INT8, 3e-2, shared="added"),
    "int4": Kind("bfloat16", HOST, DOTS, INT4, INT4, 3e-2),
    "int4-exact": Kind("float32", FloatFma("f32", 16), DOTS, INT4, INT4, 5e-6),
    "int8-up-alone-on-any-cpu": Kind("bfloat16", WidenedBf16(4), PLAIN_DOTS, INT8, None, 3e-2),
    "int4-ungated": Kind("bfloat16", HOST, DOTS, INT4, None, 3e-2, gated=False),
    "float32-ungated": Kind("float32", FloatFma("f32", 16), DOTS, None, None, 2e-6, gated=False),
    "int8-avx2": Kind("bfloat16", WidenedBf16(4), choose_integer_dots({"avx2"}), INT8, INT4, 3e-2, "avx2"),
}


class Mixtures:
    """One case's graphs for all numbers of rows, as one module."""

    def __init__(self, cache_dir: Path, kind: Kind) -> None:
        self.kind = kind
        self.device = Device("local-task", 0, kind.cpu)
        self.ops = TiledOps(kind.dtype, kind.arithmetic, kind.dots, threads=2)
        random = np.random.default_rng(3)
        up_rows = EXPERTS.count * kind.experts.halves * EXPERTS.ffn
        gate_up, down = ((up_rows, HIDDEN), (EXPERTS.count * HIDDEN, EXPERTS.ffn))
        self.router, self.weights = (
            self._plain(random, (EXPERTS.count, HIDDEN)),
            [
                self._plain(random, gate_up) if kind.up is None else self._quantized(random, gate_up, kind.up),
                self._plain(random, down) if kind.down is None else self._quantized(random, down, kind.down),
            ],
        )
        graphs = [Graph(f"rows_{rows}", self._graph, self._inputs(rows), pure=True) for rows in ROWS]
        inputs = (*self._inputs(max(ROWS)), struct((1,), "int32"))
        graphs.append(Graph("live", self._graph, inputs, pure=True))
        for graph in graphs:
            jax.eval_shape(graph.function, *graph.inputs, {})
        compiler = Compiler(cache_dir, self.device.compile_flags(), self.device.compile_target())
        self.module: Module = self.device.load(compiler.compile(lower_module(graphs, {}, self.ops.bodies)), None, "")
        self._uploaded = [self._upload(each) for each in (self.router, *self.weights)]

    def _plain(self, random: np.random.Generator, shape: tuple[int, int]) -> NDArray[Any]:
        kind = np.float32 if self.kind.dtype == "float32" else ml_dtypes.bfloat16
        matrix: NDArray[Any] = (random.standard_normal(shape) / shape[1] ** 0.5 * 2).astype(kind)
        return matrix

    def _quantized(self, random: np.random.Generator, shape: tuple[int, int], format: GroupFormat) -> Quantized:
        return quantize(random.standard_normal(shape) / shape[1] ** 0.5 * 2, format)

    def _stored(self, matrix: NDArray[Any] | Quantized) -> NDArray[Any]:
        return Packing(matrix.format).pack(matrix) if isinstance(matrix, Quantized) else self.ops.store(matrix)

    def _upload(self, matrix: NDArray[Any] | Quantized) -> Any:
        stored = self._stored(matrix)
        bits = stored.view(np.uint16) if stored.dtype == ml_dtypes.bfloat16 else stored
        return self.device.upload(bits, stored.dtype.name)

    def _inputs(self, rows: int) -> tuple[ArraySpec, ...]:
        matrices = [self._stored(each) for each in (self.router, *self.weights)]
        words = struct((rows, row_stride(HIDDEN, self.ops.arithmetic)), "int32")
        shared = (struct((rows, HIDDEN), "float32"), struct((rows, 1), "float32"))
        return (words, *(struct(each.shape, each.dtype.name) for each in matrices), *shared)

    def _graph(self, x: Any, router: Any, up: Any, down: Any, shared: Any, gate: Any, *others: Any) -> tuple[Any, ...]:
        live = others[0] if len(others) > 1 else None
        up, down = (
            PackedMatrix(data, Packing(matrix.format), matrix.levels.shape[1])
            if isinstance(matrix, Quantized)
            else data
            for data, matrix in zip((up, down), self.weights, strict=True)
        )
        given = {"none": (), "added": (shared,), "gated": (shared, gate)}[self.kind.shared]
        return (self.ops.experts(x, router, up, down, self.kind.config, live, *given),)

    def __call__(self, x: NDArray[np.float32], live: int | None = None) -> NDArray[np.float32]:
        kind = np.float32 if self.ops.arithmetic.per_word == 1 else ml_dtypes.bfloat16
        width = row_stride(HIDDEN, self.ops.arithmetic) * self.ops.arithmetic.per_word
        words = np.zeros((len(x), width), kind)
        words[:, :HIDDEN] = x
        added = [self.device.upload(np.ascontiguousarray(each)) for each in (x / 4, 3 * x[:, :1])]
        name, arguments = f"rows_{len(x)}", [self.device.upload(words.view(np.int32)), *self._uploaded, *added]
        if live is not None:
            name = "live"
            arguments.append(self.device.upload(np.array([live], np.int32)))
        (result,) = self.module.call(name, *arguments)
        out: NDArray[np.float32] = self.device.download(result)
        return out

    def close(self) -> None:
        del self.module, self._uploaded
        self.device.close()


def expected(mixtures: Mixtures, x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Expert by expert in float64."""
    router, up, down = (
        (each.dequantize() if isinstance(each, Quantized) else each).astype(np.float64)
        for each in (mixtures.router, *mixtures.weights)
    )
    up, down = up.reshape(EXPERTS.count, -1, EXPERTS.ffn, HIDDEN), down.reshape(EXPERTS.count, HIDDEN, EXPERTS.ffn)
    out, wide = np.zeros(x.shape), x.astype(np.float64)
    if mixtures.kind.shared != "none":
        out += wide / 4
    if mixtures.kind.shared == "gated":
        out /= 1 + np.exp(-3 * wide[:, :1])
    for row, (hidden, logits) in enumerate(zip(x, x @ router.T, strict=True)):
        chosen = np.argsort(-logits)[: EXPERTS.per_token]
        powers = np.exp(logits[chosen] - logits[chosen[0]])
        for expert, share in zip(chosen, powers / powers.sum(), strict=True):
            gate, *others = up[expert] @ hidden
            mixed = gate / (1 + np.exp(-gate)) * others[0] if others else np.maximum(gate, 0) ** 2
            out[row] += share * (down[expert] @ mixed)
    return out


@pytest.fixture(params=list(KINDS), scope="module")
def mixtures(request: pytest.FixtureRequest, cache_dir: Path) -> Iterator[Mixtures]:
    skip_unless_possible(KINDS[request.param].cpu)
    made = Mixtures(cache_dir, KINDS[request.param])
    yield made
    made.close()


def test_mixtures(mixtures: Mixtures) -> None:
    x = np.random.default_rng(1).standard_normal((max(ROWS), HIDDEN)).astype(np.float32)
    x = x.astype(mixtures.router.dtype).astype(np.float32)
    whole, exact = mixtures(x), expected(mixtures, x)
    assert np.abs(whole - exact).max() / np.abs(exact).max() < mixtures.kind.tolerance
    for rows in ROWS:
        np.testing.assert_array_equal(mixtures(x[-rows:]), whole[-rows:])


def test_padding_rows_change_nothing(mixtures: Mixtures) -> None:
    x = np.random.default_rng(4).standard_normal((max(ROWS), HIDDEN)).astype(np.float32)
    whole = mixtures(x)
    for live in (1, max(ROWS) - 1, max(ROWS)):
        given = x.copy()
        given[live:] = np.nan
        np.testing.assert_array_equal(mixtures(given, live)[:live], whole[:live])


def test_rows_that_choose_the_same_experts(mixtures: Mixtures) -> None:
    """All pairs fall to two experts, which is more than one block of them."""
    x = np.repeat(np.random.default_rng(2).standard_normal((1, HIDDEN)).astype(np.float32), max(ROWS), 0)
    (alone,) = mixtures(x[:1])
    assert np.abs(alone).max() > 0
    np.testing.assert_array_equal(mixtures(x), np.broadcast_to(alone, x.shape))


def partition(
    rows: int, tiles: int, size: int, threads: int = 2, max_tiles: int = 1, most: int = 16
) -> ExpertPartition:
    experts = Experts(count=64, per_token=8, ffn=64, normalize=True)
    return ExpertPartition.of(Mixture(rows, 64, experts), tiles, 2, size, threads, most, max_tiles)


def test_partitions() -> None:
    assert partition(1, 64, 1024).workgroups == PARTITIONS_PER_THREAD * 2  # handed out one at a time
    assert partition(1, 1, 1024).workgroups == 8  # a tile is not divided
    few, many = (partition(rows, 64, L2_WEIGHT_BYTES // 8, max_tiles=2) for rows in (8, 9))
    assert few.chunk == 64  # one block of pairs reads all tiles once
    assert many.chunk == 4  # several blocks use weights that L2 holds
    assert partition(8, 64, L2_WEIGHT_BYTES // 8, max_tiles=2, most=4).chunk == 4
    assert partition(9, 64, L2_WEIGHT_BYTES, max_tiles=2).chunk == 2
    assert partition(8, 6, LANES, max_tiles=4).unit == 2


@pytest.mark.parametrize(
    ("rows", "most", "blocks"),
    [
        (1, 16, [1]),
        (2, 16, [2, 1]),
        (3, 16, [4, 2, 1]),
        (5, 16, [8, 4, 2, 1]),
        (8, 12, [8, 4, 2, 1]),
        (99, 16, [8, 4, 2, 1]),
        (8, 6, [4, 2, 1]),
        (8, 2, [2, 1]),
    ],
)
def test_an_expert_of_no_more_pairs_than_the_largest_block_is_read_once(
    rows: int, most: int, blocks: list[int]
) -> None:
    assert partition(rows, 64, 1024, most=most).pair_blocks == blocks
