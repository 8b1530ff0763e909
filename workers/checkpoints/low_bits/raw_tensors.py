"""Bytes of tensors whose type safetensors does not give to numpy: FP8 and E8M0."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.json_files import CheckpointError

_LENGTH = 8
"""Bytes of the header's length, before it."""


class RawTensors:
    """Reads tensors of one byte a value. The files were opened by safetensors, which has checked their headers."""

    def __init__(self) -> None:
        self._headers: dict[Path, tuple[int, dict[str, Any]]] = {}

    def read(self, file: Path, name: str) -> NDArray[np.uint8]:
        """Read a tensor as bytes of its shape. Raises `CheckpointError` for a file that has become shorter."""
        start, header = self._header(file)
        entry = header[name]
        low, high = entry["data_offsets"]
        values = np.fromfile(file, np.uint8, count=high - low, offset=start + low)
        if values.size != high - low:
            raise CheckpointError(file, name, "the file ends within the tensor")
        return values.reshape(entry["shape"])

    def _header(self, file: Path) -> tuple[int, dict[str, Any]]:
        """Return where the tensors begin, and the header."""
        if file not in self._headers:
            with file.open("rb") as stream:
                length = int.from_bytes(stream.read(_LENGTH), "little")
                self._headers[file] = _LENGTH + length, json.loads(stream.read(length))
        return self._headers[file]
