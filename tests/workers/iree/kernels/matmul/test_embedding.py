"""Rows of packed matrices against numpy, in every format and from every lane of a tile."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.workers.iree.kernels.matmul.test_quantized_linear import FORMATS, INPUTS, OUTPUTS, make
from workers.iree.build.compiler import Compiler
from workers.iree.build.lower import Graph, lower_module, struct
from workers.iree.device.device import Device
from workers.iree.kernels.ir.arithmetic import FloatFma
from workers.iree.kernels.matmul.packing import Packing
from workers.iree.model.packed_matrix import PackedMatrix
from workers.iree.model.tiled_ops import TiledOps

WHICH = np.random.default_rng(4).permutation(OUTPUTS).astype(np.int32)


def test_rows_are_the_weights(cache_dir: Path) -> None:
    device, ops = Device("local-task", 0), TiledOps("float32", FloatFma("f32", 16))
    packings = {name: Packing(format) for name, format in FORMATS.items()}
    matrices = {name: make(format) for name, format in FORMATS.items()}
    packed = {name: packing.pack(matrices[name]) for name, packing in packings.items()}

    def rows(*values: Any) -> tuple[Any, ...]:
        which, *arrays, _ = values
        tables = zip(arrays, packings.values(), strict=True)
        return tuple(ops.embedding(PackedMatrix(array, packing, INPUTS), which) for array, packing in tables)

    inputs = (struct(WHICH.shape, "int32"), *(struct(array.shape, "int8") for array in packed.values()))
    graph = Graph("rows", rows, inputs, pure=True)
    jax.eval_shape(rows, *inputs, {})
    compiler = Compiler(cache_dir, device.compile_flags(), device.compile_target())
    loaded = device.load(compiler.compile(lower_module([graph], {}, ops.bodies)), None, "")
    tables = [device.upload(array) for array in packed.values()]
    found = loaded.call("rows", device.upload(WHICH), *tables)
    for matrix, result in zip(matrices.values(), map(device.download, found), strict=True):
        np.testing.assert_allclose(result, matrix.dequantize()[WHICH], rtol=1e-6, atol=1e-6)
    beyond = np.full(OUTPUTS, -1, np.int32)
    for result in loaded.call("rows", device.upload(beyond), *tables):
        np.testing.assert_array_equal(np.abs(device.download(result)).max(), 0)  # a row of the last tile's filling
    del loaded, found, result, tables
    device.close()
