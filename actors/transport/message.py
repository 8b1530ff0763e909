"""A message is a list of frames that arrive together: its bounds, and the number that travels before it."""

from collections.abc import Sequence

from protocol.bounds import MAX_FRAME_BYTES, MAX_FRAMES_PER_MESSAGE

MAX_MESSAGE_BYTES = 4 * MAX_FRAME_BYTES
"""All frames of one message together."""
NUMBER_BYTES = 8


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


def number_frame(number: int) -> bytes:
    """The frame that goes before the message with this number, counted from 0 in each direction: a message that was
    lost on the way is noticed by the next."""
    return number.to_bytes(NUMBER_BYTES, "big")


def gap(frame: bytes, due: int) -> str:
    """Return what is wrong with this number frame where `due` was expected; empty if nothing is."""
    if len(frame) != NUMBER_BYTES:
        return f"a message came without its number, {due}"
    number = int.from_bytes(frame, "big")
    return "" if number == due else f"message {number} came where {due} was due: what was between them is lost"
