"""The memory of a packed archive: the mapped file, whose pages processes share, or a copy of it; in huge pages where
the system has them."""

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import iree.runtime as rt
import numpy as np
import structlog

from workers.host.huge_pages import HUGE, advise_huge, huge_bytes, huge_memory, read_into
from workers.host.placement import place_file


def map_weights(file: Path, nodes: Sequence[int] = ()) -> mmap.mmap:
    """Map a file for reading; into the memory of NUMA `nodes`, if there are any. Raises `OSError`."""
    with file.open("rb") as opened:
        memory = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    advise_huge(memory)
    if nodes:
        place_file(memory, address(memory), nodes)
    return memory


def copy_weights(file: Path) -> mmap.mmap:
    """Copy a file into memory of this process. Raises `OSError`."""
    size = file.stat().st_size
    memory = huge_memory(size)
    try:
        read_into(memory, file, size)
    except OSError:  # the cgroup's limit for the hugetlb pool, if it is not the file
        memory = huge_memory(size, pool=False)
        read_into(memory, file, size)
    structlog.get_logger().info("weights_copied", bytes=size, huge=huge_bytes(address(memory)))
    return memory


def index_of(memory: mmap.mmap, size: int) -> rt.ParameterIndex:
    """Return the tensors of a safetensors file of `size` bytes in memory; the index keeps the memory."""
    index = rt.ParameterIndex()
    index.load_from_file_handle(rt.FileHandle.wrap_memory(memoryview(memory)[:size]), "safetensors")
    return index


def address(memory: mmap.mmap) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


class HugeWriter:
    """Writes a file from its start to its end in whole chunks of `HUGE` bytes, so that the page cache can hold it in
    huge pages. (Linux chooses the size of a page by the range of the write that makes it.)"""

    def __init__(self, out: BinaryIO) -> None:
        """`out` is not buffered."""
        self._out = out
        self._chunk = bytearray()
        self._position = 0

    def write_at(self, offset: int, data: memoryview) -> None:
        """Write bytes at an offset that is not before the end of what is written; the gap is filled with zeros."""
        self._append(memoryview(bytes(offset - self._position)))
        self._append(data)

    def flush(self) -> None:
        """Write the rest."""
        with memoryview(self._chunk) as chunk:
            self._write(chunk)
        self._chunk.clear()

    def _append(self, data: memoryview) -> None:
        self._position += data.nbytes
        while data.nbytes:
            if self._chunk or data.nbytes < HUGE:
                part = data[: HUGE - len(self._chunk)]
                self._chunk += part
                if len(self._chunk) == HUGE:
                    self.flush()
            else:
                part = data[: data.nbytes // HUGE * HUGE]
                self._write(part)
            data = data[part.nbytes :]

    def _write(self, data: memoryview) -> None:
        done = 0
        while done < data.nbytes:
            with data[done:] as rest:
                done += self._out.write(rest)
