"""The buffer of what the app has sent on an HTTP/2 stream and the client's window has no room for."""

from hypercorn.protocol.h2 import BUFFER_HIGH_WATER, BUFFER_LOW_WATER, BufferCompleteError, StreamBuffer

LEAST_TAKEN = 1024
"""A client that takes fewer bytes between two checks takes nothing, so that a window which opens by single bytes does
not keep a stream."""


class SendBuffer(StreamBuffer):  # type: ignore[misc]  # Hypercorn has no types
    """Hypercorn's buffer, with backpressure.

    The one of Hypercorn 0.17 and 0.18 takes itself for drained when the client's window is closed, and then grows
    without a bound.
    """

    taken = 0
    """Bytes that were taken since the last check."""
    waits = False
    """There have been bytes to send ever since the last check."""

    @property
    def ended(self) -> bool:
        """The app has sent everything."""
        return bool(self._complete)

    async def push(self, data: bytes) -> None:
        """Add bytes, and wait until the client has taken enough of them."""
        if self._complete:
            raise BufferCompleteError
        self.buffer += data
        await self._is_empty.clear()
        if len(self.buffer) >= BUFFER_HIGH_WATER:
            await self._paused.clear()
            await self._paused.wait()

    async def pop(self, max_length: int) -> bytes:
        """Take up to so many bytes to send."""
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        self.taken += len(data)
        if len(self.buffer) < BUFFER_LOW_WATER:
            await self._paused.set()
        if not self.buffer:
            self.waits = False
            await self._is_empty.set()
        return data

    def stalls(self) -> bool:
        """Check whether the client has taken nothing since the last check, although there was something to send."""
        stalls = self.waits and self.taken < LEAST_TAKEN
        self.waits, self.taken = bool(self.buffer), 0
        return stalls
