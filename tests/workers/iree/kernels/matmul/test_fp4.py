"""Codes of FP4 become levels, by shifts and masks on every CPU, and by look-ups where there is an instruction."""

from pathlib import Path

import numpy as np

from tests.workers.iree.kernels.running import runner_of
from workers.checkpoints.low_bits.fp4_layouts import LEVELS as OF_CODES
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.matmul.fp4 import LEVELS, fp4_levels
from workers.iree.kernels.matmul.integer_dots import choose_integer_dots

WORDS = 16


def test_levels_of_all_codes(cache_dir: Path) -> None:
    kernel = Kernel("unpack", 1)
    codes, out = kernel.input("codes", (WORDS,), "i32"), kernel.output("out", (2, WORDS), "i32")
    loaded = codes.load_vector([0])
    shuffle = choose_integer_dots(Cpu.of_host().features).of_fp4.shuffle
    looked_up = fp4_levels(loaded) if shuffle is None else shuffle.look_up(LEVELS, loaded.bitcast("i8")).bitcast("i32")
    for number, levels in enumerate((fp4_levels(loaded), looked_up)):
        out.store(levels, [number, 0])
    every = np.arange(4 * WORDS, dtype=np.uint8) * 7 % 16
    (found,) = runner_of(cache_dir, Device("local-task", 1))(kernel.function(), every.view(np.int32))
    np.testing.assert_array_equal(found.view(np.uint8), [OF_CODES[every]] * 2)
    assert tuple(OF_CODES) == LEVELS
