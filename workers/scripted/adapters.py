"""Adapters of the scripted runner: what their files contain changes the hash of its rows."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path

from protocol.adapter_files import ADAPTER_FILES
from workers.engine.adapters.adapter_slots import PutAdapter

FIRST_SEED = 1 << 20
"""Above the number of any adapter that was loaded with the model."""


class ScriptedAdapterSlots:
    """Implements `workers.engine.adapters.adapter_slots.AdapterSlots`."""

    def __init__(self, put: Callable[[int, int], None]) -> None:
        """`put` takes the number of an adapter and what its files contain, as a number."""
        self._put = put

    def read(self, directory: Path) -> PutAdapter:
        """Raises `ValueError` for a description that is no JSON."""
        try:
            json.loads((directory / ADAPTER_FILES[0]).read_text())
        except ValueError as error:
            raise ValueError(f"{ADAPTER_FILES[0]}: {error}") from error
        files = [directory / name for name in ADAPTER_FILES]
        seed = FIRST_SEED + zlib.crc32(b"".join(file.read_bytes() for file in files if file.exists()))
        return lambda number: self._put(number, seed)
