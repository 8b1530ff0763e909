"""Rate limit of a peer: token buckets (J. Turner, IEEE Communications Magazine, 1986). Pure."""

from dataclasses import dataclass


class TokenBucket:
    """Lets `rate` units a second pass in the long run, and `burst` of them at once."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: float) -> None:
        """Raises `ValueError` when one of them is not above 0."""
        if not (rate > 0 and burst > 0):
            raise ValueError(f"rate and burst: {rate} and {burst} are not both above 0")
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at = float("-inf")

    def take(self, amount: float, now: float) -> bool:
        """Take units, if there are as many; `now` is in seconds of any steady clock."""
        if now > self._at:
            self._left = min(self._burst, self._left + (now - self._at) * self._rate)
            self._at = now
        if amount > self._left:
            return False
        self._left -= amount
        return True

    def earn(self, amount: float) -> None:
        """Let so many units more pass, but no more than `burst` at once."""
        self._left = min(self._burst, self._left + amount)


@dataclass(frozen=True, slots=True)
class PeerRate:
    """The limits of one peer on a link. Far above what a worker sends: a message for each engine step, of some KiB."""

    messages_per_s: float = 20_000.0
    messages_at_once: float = 20_000.0
    frames_per_s: float = 20_000.0
    frames_at_once: float = 20_000.0
    bytes_per_s: float = 128.0 * (1 << 20)
    bytes_at_once: float = 256.0 * (1 << 20)


class PeerBudget:
    """The budget that a peer has left."""

    def __init__(self, rate: PeerRate) -> None:
        self._rate = rate
        self._messages = TokenBucket(rate.messages_per_s, rate.messages_at_once)
        self._frames = TokenBucket(rate.frames_per_s, rate.frames_at_once)
        self._bytes = TokenBucket(rate.bytes_per_s, rate.bytes_at_once)

    def spend(self, size: int, now: float, frames: int = 1) -> str | None:
        """Account for one message of so many bytes and frames: None, or which bound it breaks, in words."""
        if not self._messages.take(1.0, now):
            return f"more than {self._rate.messages_per_s:g} messages a second"
        if not self._frames.take(frames, now):
            return f"more than {self._rate.frames_per_s:g} frames a second"
        if not self._bytes.take(size, now):
            return f"more than {self._rate.bytes_per_s:g} bytes a second"
        return None

    def expect(self, size: int) -> None:
        """Let so many bytes more pass, which the peer was asked for."""
        self._bytes.earn(size)
