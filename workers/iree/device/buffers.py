"""Buffers that calls read and write: those that stay on the device, and inputs that are written for each call."""

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
"""MAP_NORESERVE (mmap(2)), which Python has from 3.13 on: without it Linux refuses to map more than all memory."""


def zero_pages(size: int) -> mmap.mmap:
    """Map private memory that reads as zero and costs nothing until it is written to, page by page.

    It may be more than the machine has; the writer bounds what is used. Raises `OSError` without address space for it.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    if sys.platform == "linux":
        # With transparent huge pages one row would take two megabytes of each run of rows.
        with contextlib.suppress(OSError):  # this kernel has none
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


@dataclass(slots=True)
class DeviceBuffer:
    """A buffer on the device; on a local driver also an array of its bits, and the memory that they lie in."""

    view: rt.HalBufferView
    nbytes: int
    window: NDArray[Any] | None
    memory: mmap.mmap | None = None


class Input:
    """An input that is written for each call: in place on a local driver, by a copy on others."""

    def __init__(
        self,
        upload: Callable[[NDArray[Any], str], rt.HalBufferView],
        memory: DeviceBuffer | None,
        shape: Sequence[int],
        dtype: str,
    ) -> None:
        """`memory` has this shape and type; None where calls cannot read host memory, and `upload` copies instead."""
        self._upload = upload
        self._dtype = dtype
        self._view = None if memory is None or memory.window is None else memory.view
        own = np.zeros(tuple(shape), dtype) if memory is None or memory.window is None else memory.window
        self.array: NDArray[Any] = own.view(dtype)
        """The values, to be written between two calls."""

    def ready(self) -> rt.HalBufferView:
        """Return the argument for the next call, with the values of `array`."""
        return self._upload(self.array, self._dtype) if self._view is None else self._view

    def put(self, values: NDArray[Any]) -> rt.HalBufferView:
        """Return the argument for the next call, with these values."""
        self.array[...] = values
        return self.ready()
