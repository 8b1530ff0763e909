"""Keeps blocks of cache rows in a directory. The caller's thread reads, and a thread of its own makes changes."""

import errno
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from workers.prefix_store.block import RowBlock
from workers.prefix_store.directory import StoreDirectory
from workers.prefix_store.entry import load_entry, read_entry, stored_size
from workers.prefix_store.pins import most_pinned
from workers.prefix_store.read_ahead import ReadAhead

QUEUED_BLOCKS = 16
"""Blocks that wait to be written. A further one is not taken."""
QUEUED_BYTES = 4 << 20
"""Their bytes, from which on no further one is taken."""
QUEUED_NOTES = 256
"""Other changes that wait, from which on no reuse and no pin is noted any more: a process that is suspended with the
lock of the directory would let any number of them wait."""
REST_S = 30.0
"""Seconds without writes after one has failed, as on a full disk."""
CLOSE_S = 1.0
"""Seconds for the last writes."""
_LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of this process or machine rather than of a file."""


class PrefixStore:
    """A store of one worker. Any number of processes may have one in the same directory.

    Nothing raises: what cannot be written is lost, and what cannot be read is not there. `failures` counts both.
    """

    def __init__(self, path: Path, max_bytes: int, *, temporary: bool = False) -> None:
        """Open the directory. Raises `workers.prefix_store.shared_directory.DirectoryUnusable`."""
        self._directory = StoreDirectory(path, max_bytes, temporary=temporary)
        self._max_bytes = max_bytes
        self._log = structlog.get_logger().bind(directory=str(path))
        self._ahead = ReadAhead()
        self._reported = ""
        self._rests_until = 0.0
        self._used_bytes = 0
        self._changed = threading.Condition()
        """Guards what follows."""
        self._jobs: deque[Callable[[], None]] = deque([self._directory.tidy])
        self._writing: dict[bytes, int] = {}
        """The blocks that wait to be written: their bytes by their keys."""
        self._discarded: set[bytes] = set()
        """Keys of the blocks that wait to be removed."""
        self._busy = False
        self._closing = False
        self._woken = True
        """The thread knows of all changes that wait."""
        self.spent_s = 0.0
        """Seconds of processor time that changes have taken so far."""
        self.failures = 0
        """Blocks that could not be written or read."""
        self._thread = threading.Thread(target=self._run, name="prefix-store", daemon=True)
        self._thread.start()

    @property
    def identity(self) -> str:
        """Equal for all stores in this directory, and for no others."""
        return self._directory.identity

    @property
    def max_bytes(self) -> int:
        """Bytes that the directory may have."""
        return self._directory.max_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of all blocks in the directory, those of other workers included, after this one's last change."""
        return self._used_bytes

    def can_write(self) -> bool:
        """False for some time after a write has failed."""
        return time.monotonic() >= self._rests_until

    def holds(self, block: RowBlock) -> bool:
        """Return whether a block is there, or about to be. It may be evicted or damaged when it is read."""
        if block.key in self._writing:
            return True
        return block.key not in self._discarded and self._directory.has(block)

    def read(self, block: RowBlock, size: int) -> memoryview | None:
        """Return the `size` bytes of a block; None if it is not there or damaged."""
        rows = self._ahead.take(block, functools.partial(self._read, bytearray(size)))
        if rows is None and self._directory.has(block):  # it was written meanwhile, or is damaged
            rows = self._read(bytearray(size), block)
        if rows is None and self._directory.has(block):
            rows = self._last_try(block, size)
        return rows

    def _last_try(self, block: RowBlock, size: int) -> memoryview | None:
        """Read a block that is there, and could not be read. It is removed if it is damaged, and not for what this
        process lacks: others may read it."""
        file = self._directory.file(block)
        try:
            rows = load_entry(file, block, bytearray(size))
        except OSError as error:
            if error.errno in _LACKING:
                self._fail("cannot be read", os.strerror(error.errno))
                return None
            rows = None
        if rows is None and self._directory.has(block):
            self._fail("is damaged", file.name)
            self.discard(block)
        return rows

    def expect(self, owner: int, blocks: Sequence[RowBlock], size: int) -> None:
        """Read blocks of `size` bytes before they are asked for. `owner` is for `forget`."""
        self._ahead.expect(owner, blocks, lambda block: self._read(bytearray(size), block))

    def forget(self, owner: int) -> None:
        """Read no more for an owner."""
        self._ahead.forget(owner)

    def _read(self, buffer: bytearray, block: RowBlock) -> memoryview | None:
        return read_entry(self._directory.file(block), block, buffer)

    def has_room(self, wait_s: float = 0.0) -> bool:
        """Return whether `offer` may be called now, or within some time."""
        with self._changed:
            if wait_s:
                self._wake()
            return self._changed.wait_for(self._may_take, wait_s)

    def offer(self, block: RowBlock, rows: bytes | memoryview) -> None:
        """Write a block soon after `write_offered` is called; `rows` must not change until then. One that waits already
        is not taken. Raises `ValueError` if too many wait."""
        with self._changed:
            if block.key in self._writing:
                return
            if not self._may_take():
                raise ValueError(f"{len(self._writing)} blocks wait already")
            self._writing[block.key] = len(rows)
            self._jobs.append(functools.partial(self._write, block, rows))
            self._woken = False

    def write_offered(self) -> None:
        """Begin to write what was offered: once for several blocks, because the thread that writes takes turns with the
        caller."""
        if not self._woken:
            with self._changed:
                self._wake()

    def touch(self, blocks: Sequence[RowBlock]) -> None:
        """Note that blocks were reused, unless too many changes wait."""
        self._note(functools.partial(self._directory.touch, blocks))

    def pin(self, owner: str, blocks: Sequence[RowBlock], rows: int, seconds: float) -> None:
        """Keep the first blocks of a prefix, see `StoreDirectory.pin`, unless too many changes wait."""
        self._note(functools.partial(self._directory.pin, owner, blocks, rows, seconds))

    def most_pinned(self, rows: int, beside: int = 0) -> int:
        """Return the blocks with so many bytes of rows that one owner may pin, with a state of `beside` bytes; 0 is
        none."""
        return most_pinned(self._max_bytes, stored_size(rows), stored_size(beside) if beside else 0)

    def discard(self, block: RowBlock) -> None:
        """Remove a block."""
        self._discarded.add(block.key)
        self._post(functools.partial(self._remove, block))

    def settle(self) -> None:
        """Wait until all changes are made. For tests and measurements."""
        with self._changed:
            self._wake()
            self._changed.wait_for(lambda: not self._jobs and not self._busy)

    def close(self) -> None:
        """Make the last changes and close the directory. Nothing may be called afterwards."""
        self._ahead.close(CLOSE_S)
        with self._changed:
            self._closing = True
            self._wake()
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():  # otherwise another process is suspended with the lock: the system closes it
            self._directory.close()

    def _wake(self) -> None:
        self._woken = True
        self._changed.notify_all()

    def _may_take(self) -> bool:
        return len(self._writing) < QUEUED_BLOCKS and sum(self._writing.values()) < QUEUED_BYTES

    def _note(self, job: Callable[[], None]) -> None:
        if len(self._jobs) < QUEUED_NOTES:
            self._post(job)

    def _post(self, job: Callable[[], None]) -> None:
        with self._changed:
            self._jobs.append(job)
            self._wake()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closing)
                if not self._jobs:
                    return
                job, self._busy = self._jobs.popleft(), True
            began = time.thread_time()
            try:
                job()
                self._used_bytes = self._directory.used_bytes
            except OSError as error:
                self._fail("cannot be changed", error.strerror or str(error), rest=error.errno)
            except Exception as error:  # noqa: BLE001 - whatever it is, the changes after it must be made
                self._fail("cannot be changed", repr(error), rest=0)
            with self._changed:
                self.spent_s += time.thread_time() - began
                self._busy = False
                self._changed.notify_all()

    def _remove(self, block: RowBlock) -> None:
        try:
            self._directory.remove(block)
        finally:
            self._discarded.discard(block.key)

    def _write(self, block: RowBlock, rows: bytes | memoryview) -> None:
        try:
            if self.can_write():
                self._directory.write(block, rows)
                self._reported = ""
        finally:
            with self._changed:
                self._writing.pop(block.key, None)

    def _fail(self, problem: str, text: str, *, rest: int | None = None) -> None:
        self.failures += 1
        if rest is not None:
            self._rests_until = time.monotonic() + REST_S
        if problem != self._reported:  # once, until a write succeeds
            self._reported = problem
            if rest in (errno.ENOSPC, errno.EDQUOT):
                self._log.warning("prefix_store_full", problem=problem, text=text)
            else:
                self._log.warning("prefix_store_failed", problem=problem, text=text)
