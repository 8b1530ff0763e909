"""The kernels of AArch64, emulated: against numpy, bitwise identical to this machine's, in any company of rows."""

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.workers.iree.aarch64.conftest import CPUS, emulated
from tests.workers.iree.aarch64.emulator import EmulationError
from tests.workers.iree.kernels.attention import test_attention as attention
from tests.workers.iree.kernels.matmul import test_linear as linear
from tests.workers.iree.kernels.matmul import test_quantized_linear as quantized
from tests.workers.iree.kernels.matmul.test_quantized_linear import (
    FORMATS,
    INPUTS,
    LIVE,
    MANY_LIVE,
    ROWS,
    Products,
    X,
    make,
)
from tests.workers.iree.kernels.running import runner_of
from tests.workers.iree.kernels.sampling import test_sample as sampling
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device
from workers.iree.kernels.ir.arithmetic import WidenedBf16, arithmetic_of
from workers.iree.kernels.matmul.integer_dots import PLAIN_DOTS, choose_integer_dots
from workers.precision import CpuTarget

NAMES = ("int8", "int4", "int8-float32")
"""Formats whose zeros are the middle and biases: with 8 bits `sdot` has an offset that one of them takes itself."""


def products_of(cache_dir: Path, device: Device, target: CpuTarget, dtype: str, names: tuple[str, ...]) -> Products:
    features = Cpu.named(target).features
    arithmetic, dots = arithmetic_of(features, dtype), choose_integer_dots(features)
    return Products(cache_dir, device, dtype, arithmetic, dots, {name: FORMATS[name] for name in names})


BETWEEN = "neon-dotprod"
"""It has a part of what neon-i8mm adds."""
TARGETS = [pytest.param(each, marks=[pytest.mark.exhaustive] if each == BETWEEN else []) for each in CPUS]


@pytest.fixture(params=TARGETS, scope="module")
def target(request: pytest.FixtureRequest) -> CpuTarget:
    chosen: CpuTarget = request.param
    return chosen


@pytest.fixture(scope="module")
def products(target: CpuTarget, cache_dir: Path) -> Iterator[Products]:
    made = products_of(cache_dir, emulated(target), target, "bfloat16", NAMES)
    yield made
    made.close()


@pytest.fixture(scope="module")
def here(cache_dir: Path) -> Iterator[Products]:
    """Products of this machine, by the plain definition of a dot product."""
    formats = {name: FORMATS[name] for name in NAMES}
    made = Products(cache_dir, Device("local-task", 0), "bfloat16", WidenedBf16(4), PLAIN_DOTS, formats)
    yield made
    made.close()


def test_quantized_products(products: Products) -> None:
    quantized.test_products(products)
    quantized.test_what_is_not_a_number_stays_so(products)
    quantized.test_the_largest_sums_do_not_overflow(products)


def test_quantized_products_have_the_bits_of_another_architecture(products: Products, here: Products) -> None:
    x = X.astype(ml_dtypes.bfloat16).astype(np.float32)  # as every arithmetic takes them
    for name in NAMES:
        matrix = make(FORMATS[name])
        np.testing.assert_array_equal(products(name, matrix, x), here(name, matrix, x))
        np.testing.assert_array_equal(products(name, matrix, x[: ROWS[1]]), here(name, matrix, x)[: ROWS[1]])
    matrix = make(FORMATS["int4"])
    for lives in (LIVE, MANY_LIVE):
        rows = np.resize(x, (lives[0], INPUTS))
        emulated_rows = products.live("int4", matrix, rows, lives[1])
        np.testing.assert_array_equal(emulated_rows, here.live("int4", matrix, rows, lives[1]))


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ("neon", ("fp4",)),
        pytest.param("neon", ("fp4-float32",), marks=pytest.mark.exhaustive),
        pytest.param("neon-dotprod", ("fp4", "fp4-float32"), marks=pytest.mark.exhaustive),
        pytest.param("neon-i8mm", ("fp4", "fp4-float32"), marks=pytest.mark.exhaustive),
    ],
)
def test_fp4(chosen: CpuTarget, names: tuple[str, ...], cache_dir: Path) -> None:
    """The products of codes of E2M1, with the bits of this machine's."""
    made = products_of(cache_dir, emulated(chosen), chosen, "bfloat16", names)
    quantized.test_products(made)
    quantized.test_the_largest_sums_do_not_overflow(made)
    formats = {name: FORMATS[name] for name in names}
    native = Products(cache_dir, Device("local-task", 0), "bfloat16", WidenedBf16(4), PLAIN_DOTS, formats)
    x = X.astype(ml_dtypes.bfloat16).astype(np.float32)
    for name in names:
        matrix = make(FORMATS[name])
        np.testing.assert_array_equal(made(name, matrix, x), native(name, matrix, x))
    native.close()
    made.close()


def test_exact_rows(target: CpuTarget, cache_dir: Path) -> None:
    """Rows of three limbs, whose sums are corrected one by one."""
    made = products_of(cache_dir, emulated(target), target, "float32", ("int8",))
    quantized.test_products(made)
    made.close()


@pytest.mark.parametrize("chosen", [pytest.param(each, marks=pytest.mark.exhaustive) for each in ("neon", "neon-i8mm")])
def test_bfloat16(chosen: CpuTarget, cache_dir: Path) -> None:
    """By widening and by `bfdot`."""
    run = runner_of(cache_dir, emulated(chosen))
    arithmetic = arithmetic_of(Cpu.named(chosen).features, "bfloat16")
    linear.test_linear(run, arithmetic, 27)
    linear.test_live_rows_are_those_of_a_product_of_all(run, arithmetic, 11, (11, 10, 9, 2), "glu_linear")
    attention.test_attention(run, arithmetic, 1e-6, {"window": 70}, 0)


def test_sampling(cache_dir: Path) -> None:
    run = sampling.sampling_on(emulated("neon"), cache_dir)
    sampling.test_tokens_are_those_of_the_definition(run, 5003, 3.0)
    sampling.test_a_row_is_drawn_alike_in_any_company(run)


@pytest.mark.parametrize(("better", "lesser"), [("neon-dotprod", "neon"), ("neon-i8mm", "neon-dotprod")])
def test_the_emulated_cpu_lacks_the_instructions_of_the_next_target(
    better: CpuTarget, lesser: CpuTarget, cache_dir: Path
) -> None:
    """So that a target which runs there uses none of them."""
    made = products_of(cache_dir, emulated(better), better, "bfloat16", NAMES)
    lesser_device = emulated(lesser)
    made.module = lesser_device.load(made.file, None, "")
    with pytest.raises(EmulationError, match="uncaught target signal 4"):
        made("int8", make(FORMATS["int8"]), X)
    made.close()
