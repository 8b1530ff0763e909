"""Reads the metadata at the start of a GGUF file, within bounds and without trust in any count or length.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The reader of the `gguf` package is not used: it
maps what a file states without bounds, and makes two arrays for each of the hundred thousands of strings of a
vocabulary.
"""

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workers.checkpoints.json_files import CheckpointError

MAX_ITEMS = 4 << 20
"""Above any real array: a vocabulary has up to 262,144 tokens, and as many merges or some more."""
MAX_STRING = 16 << 20
"""Bytes of a string, above any chat template."""
MAX_HEADER = 64 << 20
"""Above any real metadata and list of tensors: those of a vocabulary of 262,144 tokens have 20 MiB. Values take several
times their bytes in memory."""
MAX_KEY = 1 << 16
"""Bytes of a key or of a tensor's name, as the format limits keys."""
STRING, ARRAY, BOOL = 8, 9, 7
NUMBERS: Mapping[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""numpy's names of the types of numbers, by GGUF's; 7 is bool."""
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class Cursor:
    """A position in the bytes of a file, which passes neither their end nor `MAX_HEADER`."""

    def __init__(self, file: Path, data: memoryview) -> None:
        self.file = file
        self.at = 0
        self._data = data

    def error(self, field: str, problem: str) -> CheckpointError:
        return CheckpointError(self.file, field, problem)

    def bytes(self, size: int, field: str) -> memoryview:
        """Take bytes. Raises `CheckpointError` when the file or the bound ends before."""
        start, end = self.at, self.at + size
        if min(end, len(self._data)) > MAX_HEADER:
            raise self.error(field, f"the header does not end within the bound of {MAX_HEADER} bytes")
        if end > len(self._data):
            raise self.error(field, f"the file ends within it: {size} bytes are stated, {len(self._data) - start} left")
        self.at = end
        return self._data[start:end]

    def u32(self, field: str) -> int:
        value: int = _U32.unpack(self.bytes(4, field))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = _U64.unpack(self.bytes(8, field))[0]
        return value

    def string(self, field: str, most: int = MAX_STRING) -> str:
        """Take a string with its length before it."""
        size = self.u64(field)
        if size > most:
            raise self.error(field, f"a string of {size} bytes is over the bound of {most}")
        try:
            return str(self.bytes(size, field), "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(field, f"is not UTF-8: {error}") from error

    def value(self, key: str) -> Any:
        """Take a value with its type before it: a number, a bool, a string or a list of one of these."""
        kind = self.u32(key)
        if kind == STRING:
            return self.string(key)
        if kind != ARRAY:
            return self._numbers(kind, 1, key)[0]
        kind, count = self.u32(key), self.u64(key)
        if count > MAX_ITEMS:
            raise self.error(key, f"an array of {count} items is over the bound of {MAX_ITEMS}")
        return self._strings(count, key) if kind == STRING else self._numbers(kind, count, key)

    def _numbers(self, kind: int, count: int, key: str) -> list[Any]:
        if kind not in NUMBERS:
            problem = "arrays of arrays are not supported" if kind == ARRAY else f"the type {kind} is unknown"
            raise self.error(key, problem)
        dtype = np.dtype(NUMBERS[kind])
        found = np.frombuffer(self.bytes(count * dtype.itemsize, key), dtype)
        if kind == BOOL:
            return [bool(value) for value in found]
        if dtype.kind == "f":
            return [_shortest(value) for value in found]
        values: list[Any] = found.tolist()
        return values

    def _strings(self, count: int, key: str) -> list[str]:
        if count * 8 > len(self._data) - self.at:  # each has its length at least
            raise self.error(key, f"the file is too short for an array of {count} strings")
        data, at, end, found = self._data, self.at, min(len(self._data), MAX_HEADER), []
        unpack = _U64.unpack_from
        for number in range(count):
            if at + 8 > end:
                raise self.error(key, f"the file or the bound ends before string {number} of {count}")
            (size,) = unpack(data, at)
            at += 8
            if size > MAX_STRING or at + size > end:
                raise self.error(key, f"string {number} has {size} bytes, more than the file or the bound allow")
            try:
                found.append(str(data[at : at + size], "utf-8"))
            except UnicodeDecodeError as error:
                raise self.error(key, f"string {number} is not UTF-8: {error}") from error
            at += size
        self.at = at
        return found


def _shortest(value: Any) -> float:
    """The shortest decimal that is this float32: 1e-05 as config.json has it, not 9.999999747378752e-06."""
    return float(str(value)) if math.isfinite(value) else float(value)
