"""The bounds of one message, which is a list of frames that arrive together."""

from collections.abc import Sequence

from protocol.bounds import MAX_FRAME_BYTES, MAX_FRAMES_PER_MESSAGE

MAX_MESSAGE_BYTES = 4 * MAX_FRAME_BYTES
"""All frames of one message together."""


class MessageRefused(ValueError):
    """Raised by a send when a bound is broken: number of frames, size of a frame or of them all. Nothing was sent."""


def check_message(frames: Sequence[bytes]) -> None:
    """Raises `MessageRefused`."""
    if len(frames) == 1 and len(frames[0]) <= MAX_FRAME_BYTES:
        return
    if not 1 <= len(frames) <= MAX_FRAMES_PER_MESSAGE:
        raise MessageRefused(f"a message has 1 to {MAX_FRAMES_PER_MESSAGE} frames, not {len(frames)}")
    longest, total = max(map(len, frames)), sum(map(len, frames))
    if longest > MAX_FRAME_BYTES:
        raise MessageRefused(f"a frame of {longest} bytes is over the bound of {MAX_FRAME_BYTES}")
    if total > MAX_MESSAGE_BYTES:
        raise MessageRefused(f"a message of {total} bytes is over the bound of {MAX_MESSAGE_BYTES}")
