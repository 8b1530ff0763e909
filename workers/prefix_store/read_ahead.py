"""Reads blocks on a thread of its own while the sequences that take them wait, or while earlier ones are written."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import structlog

from workers.prefix_store.block import RowBlock

AHEAD_BLOCKS = 16
"""Blocks that are in memory before they are taken. When they are, the next one is read when half of them are taken, so
that the threads take turns less often."""
AHEAD_BYTES = 16 << 20
"""Their bytes, from which on no further one is read: a recurrent state may have more than all other blocks."""

Read = Callable[[RowBlock], memoryview | None]


class ReadAhead:
    """Blocks are read in the order in which they are expected. What is not read yet is read by its taker."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        """Guards what follows."""
        self._queue: OrderedDict[bytes, tuple[int, RowBlock, Read]] = OrderedDict()
        """By the keys of blocks, of which thousands may wait. A block that several expect is that of the first one."""
        self._ready: dict[bytes, tuple[int, memoryview]] = {}
        self._reading: tuple[int, bytes] | None = None
        self._full = False
        """There were as many as the bounds allow, and more than half of them are left."""
        self._closing = False
        self._thread: threading.Thread | None = None

    def expect(self, owner: int, blocks: Sequence[RowBlock], read: Read) -> None:
        """Read blocks soon, by a function that returns None for one that is not there. `owner` is for `forget`."""
        with self._changed:
            for block in blocks:
                self._queue.setdefault(block.key, (owner, block, read))
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="prefix-read-ahead", daemon=True)
                self._thread.start()

    def take(self, block: RowBlock, read: Read) -> memoryview | None:
        """Return the rows of a block, which this call reads if nothing has done so yet."""
        with self._changed:
            self._changed.wait_for(lambda: self._reading is None or self._reading[1] != block.key)
            found = self._ready.pop(block.key, None)
            if found is None:
                self._queue.pop(block.key, None)
            if self._has_room():
                self._changed.notify_all()
        return read(block) if found is None else found[1]

    def forget(self, owner: int) -> None:
        """Read no more for an owner, and drop what was read for it."""
        with self._changed:
            for key in [key for key, each in self._queue.items() if each[0] == owner]:
                del self._queue[key]
            self._ready = {key: found for key, found in self._ready.items() if found[0] != owner}
            if self._reading is not None and self._reading[0] == owner:
                self._reading = (-1, self._reading[1])
            self._changed.notify_all()

    def close(self, wait_s: float) -> None:
        """End the thread. It is left alone if its disk does not answer in time."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(wait_s)

    def _has_room(self) -> bool:
        share = 2 if self._full else 1
        held = sum(rows.nbytes for _, rows in self._ready.values())
        self._full = len(self._ready) >= AHEAD_BLOCKS // share or held >= AHEAD_BYTES // share
        return not self._full

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or (len(self._queue) > 0 and self._has_room()))
                if self._closing:
                    return
                _, (owner, block, read) = self._queue.popitem(last=False)
                self._reading = (owner, block.key)
            try:
                rows = read(block)
            except Exception as error:  # noqa: BLE001 - the taker reads it, and meets the error
                rows = None
                structlog.get_logger().error("read_ahead_failed", block=block.name, exc_info=error)
            with self._changed:
                # What is not there may be written before it is taken. An owner may have been forgotten.
                if rows is not None and self._reading[0] >= 0:
                    self._ready[block.key] = (owner, rows)
                self._reading = None
                self._changed.notify_all()
