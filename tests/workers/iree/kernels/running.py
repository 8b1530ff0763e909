"""Running single kernels on arrays, and operands as numpy makes them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from workers.iree.build.compiler import Compiler
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device
from workers.iree.kernels.ir.arithmetic import Arithmetic, Bf16Dot, FloatFma, WidenedBf16

NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
TOLERANCE = {"f32": 2e-6, "f16": 2e-3, "bf16": 2e-2}
ARITHMETICS = [
    pytest.param(FloatFma("f32", 16), id="f32"),
    pytest.param(FloatFma("f16", 16), id="f16"),
    pytest.param(WidenedBf16(4), id="bf16-widened"),
    pytest.param(
        Bf16Dot(),
        id="bf16-pairs",
        marks=pytest.mark.skipif("avx512bf16" not in Cpu.of_host().features, reason="the CPU has no AVX512-BF16"),
    ),
]
Run = Callable[..., list[NDArray[Any]]]


def runner_of(cache_dir: Path, device: Device) -> Run:
    """Return a function that compiles a kernel's text and runs it on arrays."""
    compiler = Compiler(cache_dir, device.compile_flags(), device.compile_target())

    def call(text: str, *arrays: NDArray[Any]) -> list[NDArray[Any]]:
        module = device.load(compiler.compile(module_of(text)), None, "")
        views = [device.upload(_bits(array), array.dtype.name) for array in arrays]
        return [device.download(view) for view in module.call("main", *views)]

    return call


def module_of(text: str) -> str:
    """Return a module whose function `main` is a kernel."""
    (name, arguments, results) = re.findall(r"func\.func private @(\w+)\((.*?)\) -> \((.*?)\) \{", text)[0]
    names = ", ".join(re.findall(r"%\w+", arguments))
    types = ", ".join(re.findall(r": (tensor<[^>]*>)", arguments))
    count = results.count("tensor<")
    out = ", ".join(f"%r#{i}" for i in range(count)) if count > 1 else "%r"
    entry = f"""
      func.func public @main({arguments}) -> ({results}) {{
        %r{f":{count}" if count > 1 else ""} = func.call @{name}({names}) : ({types}) -> ({results})
        return {out} : {results}
      }}"""
    return f"module @kernel {{ {text} {entry} }}"


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def words(x: NDArray[np.float32], arithmetic: Arithmetic, padding: int) -> NDArray[np.int32]:
    flat = x.astype(ml_dtypes.bfloat16 if arithmetic.per_word == 2 else np.float32)
    return np.pad(np.ascontiguousarray(flat).view(np.int32), ((0, 0), (0, padding)))


def floats(x: NDArray[np.int32], width: int, arithmetic: Arithmetic) -> NDArray[np.float32]:
    kind = ml_dtypes.bfloat16 if arithmetic.per_word == 2 else np.float32
    whole: NDArray[np.float32] = (
        np.ascontiguousarray(x[:, : width // arithmetic.per_word]).view(kind).astype(np.float32)
    )
    return whole


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def rounded(x: NDArray[np.float32], arithmetic: Arithmetic) -> NDArray[np.float32]:
    out: NDArray[np.float32] = x.astype(NUMPY[arithmetic.element]).astype(np.float32)
    return out
