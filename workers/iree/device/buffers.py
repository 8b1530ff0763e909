"""Memory that calls read and write: the cache, which stays, and arguments that are written anew for each call."""

import contextlib
import mmap
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

NO_RESERVE = 0x4000 if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") else 0
"""MAP_NORESERVE (mmap(2)), which Python names from 3.13 on: without it Linux refuses what is more than all memory."""


def zero_pages(size: int) -> mmap.mmap:
    """Memory of this process alone that reads as zero, and costs nothing until it is written to, page by page.

    It may be more than the machine has: who writes to it bounds what is there. Raises `OSError` when there is no
    address space for it.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    if sys.platform == "linux":
        # Where huge pages are always given, one row would take two megabytes of each run of rows.
        with contextlib.suppress(OSError):  # this kernel has none
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


@dataclass(slots=True)
class Resident:
    """A buffer on the device; on a local driver also a window of its bits, and the memory that they lie in."""

    view: rt.HalBufferView
    nbytes: int
    window: NDArray[Any] | None
    memory: mmap.mmap | None = None


class Input:
    """An argument that is written anew for each call: on a local driver where the call will read it."""

    def __init__(
        self,
        upload: Callable[[NDArray[Any], str], rt.HalBufferView],
        memory: Resident | None,
        shape: Sequence[int],
        dtype: str,
    ) -> None:
        """`memory` has this shape and type; None where calls cannot read host memory, and `upload` copies instead."""
        self._upload = upload
        self._dtype = dtype
        self._view = None if memory is None or memory.window is None else memory.view
        own = np.zeros(tuple(shape), dtype) if memory is None or memory.window is None else memory.window
        self.array: NDArray[Any] = own.view(dtype)
        """To be written to between two calls."""

    def ready(self) -> rt.HalBufferView:
        """The argument for the next call: what `array` holds."""
        return self._upload(self.array, self._dtype) if self._view is None else self._view

    def put(self, values: NDArray[Any]) -> rt.HalBufferView:
        """The argument for the next call, with these values."""
        self.array[...] = values
        return self.ready()
