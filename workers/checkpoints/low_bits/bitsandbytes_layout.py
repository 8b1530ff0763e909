"""NF4 and FP4 of bitsandbytes: codes of four bits into a table, in blocks of the flattened matrix."""

import json
import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.low_bits.codes import check_finite, nibbles
from workers.checkpoints.low_bits.layout import LowBitLayout, Parts, Shape, fit

_ENTRIES = 16


@dataclass(frozen=True)
class Table4Layout(LowBitLayout):
    """A matrix flattened by rows, whose blocks share a largest magnitude, `absmax`, which may be quantized again."""

    kind: str = "nf4"

    codes = ".weight"
    code_types = ("U8",)

    @property
    def name(self) -> str:
        return self.kind

    @property
    def _state(self) -> str:
        return f".weight.quant_state.bitsandbytes__{self.kind}"

    @property
    def required(self) -> dict[str, tuple[str, ...]]:
        return {".weight.absmax": ("F32", "U8"), ".weight.quant_map": ("F32",), self._state: ("U8",)}

    optional = MappingProxyType({".weight.nested_absmax": ("F32",), ".weight.nested_quant_map": ("F32",)})

    @property
    def stated(self) -> tuple[str, ...]:
        return (self._state,)

    def shape(self, codes: tuple[int, ...], parts: Parts) -> Shape:
        shape = self._read(parts).get("shape")
        if not isinstance(shape, list) or len(shape) != 2 or not all(type(each) is int and each > 0 for each in shape):
            raise ValueError(f"quant_state: the shape {shape!r} is not that of a matrix")
        if -(-shape[0] * shape[1] // 2) != math.prod(codes):
            raise ValueError(f"quant_state: {math.prod(codes)} bytes are not a matrix of {shape} codes")
        return shape[0], shape[1]

    def values(self, parts: Parts, shape: Shape, low: int, high: int) -> NDArray[np.float32]:
        inputs, state = shape[1], self._read(parts)
        block = _integer(state, "blocksize")
        start, end = low * inputs, high * inputs
        table = check_finite(fit(parts[".weight.quant_map"], (_ENTRIES,), "quant_map"))
        largest = self._largest(parts, state, -(-shape[0] * inputs // block))
        packed = parts[self.codes].reshape(-1)[start // 2 : -(-end // 2)]
        codes = nibbles(packed, high_first=True)[start % 2 :][: end - start]
        values: NDArray[np.float32] = table[codes] * largest[np.arange(start, end) // block]
        return values.reshape(-1, inputs)

    def _largest(self, parts: Parts, state: dict[str, Any], blocks: int) -> NDArray[np.float32]:
        """Return the largest magnitude of each block."""
        stored = fit(parts[".weight.absmax"].reshape(-1), (blocks,), "absmax")
        if stored.dtype != np.uint8:
            return check_finite(stored)
        block = _integer(state, "nested_blocksize")
        offset = state.get("nested_offset")
        if not isinstance(offset, (int, float)) or not math.isfinite(offset):
            raise ValueError(f"quant_state: nested_offset {offset!r} is not a number")
        missing = next((part for part in self.optional if part not in parts), None)
        if missing is not None:
            raise ValueError(f"the tensor {missing[1:]} is missing, which absmax in U8 needs")
        table = check_finite(fit(parts[".weight.nested_quant_map"], (256,), "nested_quant_map"))
        outer = check_finite(fit(parts[".weight.nested_absmax"], (-(-blocks // block),), "nested_absmax"))
        largest: NDArray[np.float32] = table[stored] * outer[np.arange(blocks) // block] + np.float32(offset)
        return largest

    def _read(self, parts: Parts) -> dict[str, Any]:
        """Read the description of the matrix, a JSON object in a tensor of bytes."""
        state = json.loads(parts[self._state].tobytes())  # a ValueError, where it is none
        if not isinstance(state, dict):
            raise ValueError("quant_state is not an object")
        if state.get("quant_type") != self.kind:
            raise ValueError(f"quant_state: quant_type {state.get('quant_type')!r} is not {self.kind!r}")
        return state


def _integer(state: dict[str, Any], field: str) -> int:
    value = state.get(field)
    if type(value) is not int or value <= 0:
        raise ValueError(f"quant_state: {field} {value!r} is not a positive integer")
    return value
