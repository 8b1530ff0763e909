"""Products with quantized weights against numpy: every format, and every row the same whatever is beside it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.workers.iree.cpus import skip_unless_possible
from workers.checkpoints.low_bits.fp4_layouts import LEVELS
from workers.checkpoints.quantized_matrix import SCALE_TYPES, GroupFormat, Quantized, quantize
from workers.iree.build.compiler import Compiler
from workers.iree.build.lower import Graph, lower_module, struct
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device, Module
from workers.iree.kernels.ir.arithmetic import Arithmetic, FloatFma, WidenedBf16, arithmetic_of, row_stride
from workers.iree.kernels.matmul.integer_dots import PLAIN_DOTS, IntegerDots, choose_integer_dots
from workers.iree.kernels.matmul.neon_dots import Sdot, SdotOffset, Smlal, SmullSadalp, Usdot
from workers.iree.kernels.matmul.packing import Packing
from workers.iree.kernels.matmul.x86_dots import Vpdpbusd, Vpmaddubsw, Vpmaddwd
from workers.iree.model.packed_matrix import PackedMatrix
from workers.iree.model.tiled_ops import TiledOps
from workers.precision import CpuTarget

INPUTS, OUTPUTS = 384, 40
ROWS = (1, 5, 21)
"""One block, one of several rows, and two of which the last begins sooner."""
LIVE = (14, 13, 9, 3)
"""Live rows of a graph of as many as the first: blocks of seven, of which the last begins sooner, and one of nine."""
MANY_LIVE = (150, 149, 72, 68, 64, 40, 33, 24, 16, 12, 8, 4, 1)
"""The same for blocks of one height and a lower one, some of which are multiplied by a tile together."""
FORMATS = {
    "int8": GroupFormat(8, 64, "middle", "float16"),
    "int4": GroupFormat(4, 64, "bias", "float16"),
    "int4-bfloat16": GroupFormat(4, 32, "bias", "bfloat16"),
    "int8-float32": GroupFormat(8, 32, "bias", "float32"),
    "int4-levels": GroupFormat(4, 128, "level", "float16"),
    "fp4": GroupFormat(4, 32, "middle", "bfloat16", e2m1=True),
    "fp4-float32": GroupFormat(4, 16, "middle", "float32", e2m1=True),
}
INTEGERS = tuple(name for name in FORMATS if not name.startswith("fp4"))
QUANTIZED = ("int8", "int4")
"""The formats of `--quantize`."""
SHORT = "fp4"
"""A format with groups shorter than those of activations can be, whose blocks of many rows are lower."""
X = np.random.default_rng(1).standard_normal((max(ROWS), INPUTS)).astype(np.float32) * np.linspace(
    0.1, 9, INPUTS, dtype=np.float32
)


def make(format: GroupFormat) -> Quantized:
    random = np.random.default_rng(2)
    if format.e2m1:
        codes = random.integers(0, 16, (OUTPUTS, INPUTS)).astype(np.uint8)
        scales = random.choice([0.25, 1.0, 2.0], (OUTPUTS, INPUTS // format.group))
        return Quantized(format, LEVELS[codes], scales.astype(SCALE_TYPES[format.scales]), None)
    if format.zero != "level":
        return quantize(random.standard_normal((OUTPUTS, INPUTS)), format)
    shape = (OUTPUTS, INPUTS // format.group)
    levels = random.integers(0, 16, (OUTPUTS, INPUTS)).astype(np.uint8)
    return Quantized(
        format, levels, random.random(shape).astype(np.float16), random.integers(0, 17, shape) * np.float16(1)
    )


def rounded(x: NDArray[np.float32], group: int, last: int) -> NDArray[np.float64]:
    """Activations as the kernels round them."""
    groups = x.reshape(len(x), -1, group)
    top = np.abs(groups).max(-1, keepdims=True)
    levels, steps = np.rint(groups * (np.float32(last) / top)), (top / np.float32(last)).astype(np.float64)
    out: NDArray[np.float64] = (levels * steps).reshape(x.shape)
    return out


class Products:
    """Compiles all formats and numbers of rows as one module, and runs them by name."""

    def __init__(
        self,
        cache_dir: Path,
        device: Device,
        dtype: str,
        arithmetic: Arithmetic,
        dots: IntegerDots,
        formats: dict[str, GroupFormat],
    ) -> None:
        self.device = device
        self.ops = TiledOps(dtype, arithmetic, dots)
        self.packings = {name: Packing(format) for name, format in formats.items()}
        graphs = [self._graph(name, rows) for name in formats for rows in ROWS]
        graphs += [self._live_graph(name, LIVE[0]) for name in formats if name == "int4"]
        self.live_formats = tuple(name for name in formats if name in QUANTIZED or self._has_short_blocks(name))
        graphs += [self._live_graph(name, MANY_LIVE[0]) for name in self.live_formats]
        for graph in graphs:
            jax.eval_shape(graph.function, *graph.inputs, {})
        compiler = Compiler(cache_dir, self.device.compile_flags(), self.device.compile_target())
        self.file = compiler.compile(lower_module(graphs, {}, self.ops.bodies))
        self.module: Module = self.device.load(self.file, None, "")

    def _has_short_blocks(self, name: str) -> bool:
        return name == SHORT and self.ops.integer_dots.of(FORMATS[name]).several_tiles

    def _graph(self, name: str, rows: int) -> Graph:
        packing = self.packings[name]

        def product(x: Any, data: Any, _: Any) -> tuple[Any, ...]:
            return (self.ops.linear(x, PackedMatrix(data, packing, INPUTS), OUTPUTS),)

        width = row_stride(INPUTS, self.ops.arithmetic)
        inputs = (struct((rows, width), "int32"), struct(packing.stored_shape(OUTPUTS, INPUTS), "int8"))
        return Graph(self._entry(name, rows), product, inputs, pure=True)

    def _live_graph(self, name: str, rows: int) -> Graph:
        packing, width = self.packings[name], row_stride(INPUTS, self.ops.arithmetic)

        def product(x: Any, data: Any, live: Any, _: Any) -> tuple[Any, ...]:
            return (self.ops.linear(x, PackedMatrix(data, packing, INPUTS), OUTPUTS, None, live),)

        shapes = ((rows, width), "int32"), (packing.stored_shape(OUTPUTS, INPUTS), "int8"), ((1,), "int32")
        return Graph(f"live_{name}_{rows}", product, tuple(struct(*shape) for shape in shapes), pure=True)

    def live(self, name: str, matrix: Quantized, x: NDArray[np.float32], live: int) -> NDArray[np.float32]:
        data, number = self.packings[name].pack(matrix), np.array([live], np.int32)
        arguments = [self.device.upload(each) for each in (self.words(x), data, number)]
        out: NDArray[np.float32] = self.device.download(self.module.call(f"live_{name}_{len(x)}", *arguments)[0])
        return out[:live]

    def _entry(self, name: str, rows: int) -> str:
        return f"{name.replace('-', '_')}_{rows}"

    def __call__(self, name: str, matrix: Quantized, x: NDArray[np.float32]) -> NDArray[np.float32]:
        arguments = [self.device.upload(each) for each in (self.words(x), self.packings[name].pack(matrix))]
        out: NDArray[np.float32] = self.device.download(self.module.call(self._entry(name, len(x)), *arguments)[0])
        return out

    def words(self, x: NDArray[np.float32]) -> NDArray[np.int32]:
        """Rows as the norm before a product leaves them."""
        kind = np.float32 if self.ops.arithmetic.per_word == 1 else ml_dtypes.bfloat16
        width = row_stride(INPUTS, self.ops.arithmetic) * self.ops.arithmetic.per_word
        padded = np.zeros((len(x), width), kind)
        padded[:, :INPUTS] = x
        return padded.view(np.int32)

    def close(self) -> None:
        del self.module
        self.device.close()


FEATURES = Cpu.of_host().features
HOST_DOTS = choose_integer_dots(FEATURES)
AVX2, AVX_VNNI = {"avx2"}, {"avx2", "avxvnni"}
CASES: dict[str, tuple[CpuTarget, str, Arithmetic, IntegerDots, tuple[str, ...]]] = {
    "this CPU's": ("host", "bfloat16", arithmetic_of(FEATURES, "bfloat16"), HOST_DOTS, tuple(FORMATS)),
    "exact": ("host", "float32", FloatFma("f32", 16), HOST_DOTS, ("int8", "int4")),
    "any CPU's": ("host", "bfloat16", WidenedBf16(4), PLAIN_DOTS, ("int8", "int4")),
    "AVX2": ("avx2", "bfloat16", WidenedBf16(4), choose_integer_dots(AVX2), tuple(FORMATS)),
    "AVX2, exact": ("avx2", "float32", FloatFma("f32", 4), choose_integer_dots(AVX2), ("int8", "int4")),
    "AVX-VNNI": ("avx-vnni", "bfloat16", WidenedBf16(4), choose_integer_dots(AVX_VNNI), INTEGERS),
}


@pytest.fixture(params=list(CASES), scope="module")
def products(request: pytest.FixtureRequest, cache_dir: Path) -> Iterator[Products]:
    cpu, dtype, arithmetic, dots, names = CASES[request.param]
    skip_unless_possible(cpu)
    device = Device("local-task", 0, cpu)
    made = Products(cache_dir, device, dtype, arithmetic, dots, {name: FORMATS[name] for name in names})
    yield made
    made.close()


def test_products(products: Products) -> None:
    exact_rows = products.ops.dtype == "float32"
    last, x = 127 << 14 if exact_rows else 127, X
    if products.ops.arithmetic.per_word == 2:
        x = X.astype(ml_dtypes.bfloat16).astype(np.float32)
    for name, packing in products.packings.items():
        matrix = make(packing.format)
        expected = rounded(x, min(packing.format.group, 64), last) @ matrix.dequantize().astype(np.float64).T
        whole = products(name, matrix, X)
        np.testing.assert_allclose(whole, expected, atol=2e-6 * np.abs(expected).max())
        exact = x @ matrix.dequantize().T
        assert np.abs(whole - exact).max() / np.abs(exact).max() < (2e-6 if exact_rows else 1e-2)
        for rows in ROWS:
            np.testing.assert_array_equal(products(name, matrix, X[:rows]), whole[:rows])


def test_live_rows_are_those_of_a_product_of_all(products: Products) -> None:
    for name in products.live_formats:
        matrix = make(FORMATS[name])
        whole = products(name, matrix, X)
        for lives in (LIVE, MANY_LIVE) if name == "int4" else (MANY_LIVE,):
            x, expected = (np.resize(each, (lives[0], each.shape[1])) for each in (X, whole))
            for live in lives:
                np.testing.assert_array_equal(products.live(name, matrix, x, live), expected[:live])


def test_what_is_not_a_number_stays_so(products: Products) -> None:
    matrix = make(FORMATS["int4"])
    for value in (np.nan, np.inf):
        x = X[:5].copy()
        x[2, 100] = value
        out = products("int4", matrix, x)
        assert not np.isfinite(out[2]).any()
        np.testing.assert_array_equal(np.delete(out, 2, 0), np.delete(products("int4", matrix, X[:5]), 2, 0))


def test_zeros(products: Products) -> None:
    np.testing.assert_array_equal(products("int8", make(FORMATS["int8"]), np.zeros((1, INPUTS), np.float32)), 0)


def test_the_largest_sums_do_not_overflow(products: Products) -> None:
    for name, packing in products.packings.items():
        made = make(packing.format)
        largest = 2 * packing.format.middle if packing.format.e2m1 else (1 << packing.format.bits) - 1
        matrix = dataclasses.replace(made, levels=np.full_like(made.levels, largest))
        x = np.full((5, INPUTS), 3.0, np.float32)
        x[1::2] = -3.0
        expected = rounded(x, min(packing.format.group, 64), 127) @ matrix.dequantize().astype(np.float64).T
        np.testing.assert_allclose(products(name, matrix, x), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_choice() -> None:
    assert choose_integer_dots({"avx2", "avx512f", "avx512vnni", "avxvnni"}) == IntegerDots(*[Vpdpbusd(16)] * 3)
    assert choose_integer_dots(AVX_VNNI) == IntegerDots(*[Vpdpbusd(8)] * 3)
    assert choose_integer_dots(AVX2) == IntegerDots(Vpmaddwd(), Vpmaddubsw(), Vpmaddubsw(narrow_dots=4))
    assert choose_integer_dots({"neon", "dotprod", "i8mm"}) == IntegerDots(Usdot(), Usdot(), Usdot())
    assert choose_integer_dots({"neon", "dotprod"}) == IntegerDots(SdotOffset(), Sdot(), Sdot())
    assert choose_integer_dots({"neon"}) == IntegerDots(SmullSadalp(), Smlal(), Smlal(narrow_dots=8))
    assert choose_integer_dots({"sse2"}) == PLAIN_DOTS
