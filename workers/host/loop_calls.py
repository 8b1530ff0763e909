"""Calls on an event loop from another thread, which keeps the GIL."""

import asyncio
import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable

CHUNK = 1 << 16
"""Bytes that are read from the pipe at once."""

Call = Callable[[], object]


class LoopCalls:
    """Passes calls to a loop like `loop.call_soon_threadsafe`, without releasing the GIL.

    `call_soon_threadsafe` wakes the loop by a socket, and sending releases the GIL: the loop may get it before the
    thread does, which then waits until the loop has done its work (docs/adr/0072).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Used on the loop, except `call_soon`."""
        self._loop = loop
        self._calls: deque[Call] = deque()
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        self._write = ctypes.PyDLL(None).write  # functions of a PyDLL keep the GIL
        self._write.argtypes, self._write.restype = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t), ctypes.c_ssize_t
        self._lock = threading.Lock()
        self._closed = False
        loop.add_reader(self._reader, self._run)

    def call_soon(self, call: Call) -> None:
        """Have the loop make a call, after those before it. From any thread. Raises `RuntimeError` when closed."""
        with self._lock:  # the pipe must not be closed, nor its number be another file's, while it is written to
            if self._closed:
                raise RuntimeError("no more calls are passed to the loop")
            self._calls.append(call)
            self._wake()

    def close(self) -> None:
        """Refuse further calls. Those that wait are not made."""
        with self._lock:
            self._closed = True
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            os.close(self._writer)
            self._calls.clear()

    def _wake(self) -> None:
        self._write(self._writer, b"\0", 1)  # fails if the pipe is full, and then the loop has not read it yet

    def _run(self) -> None:
        os.read(self._reader, CHUNK)
        try:
            while self._calls:
                self._calls.popleft()()
        finally:  # if a call raises, which is passed to the exception handler of the loop
            if self._calls:
                self._wake()
