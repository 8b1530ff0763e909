"""The number that travels before each message of a link: one that was lost on the way is noticed by the next."""

NUMBER_BYTES = 8


def number_frame(number: int) -> bytes:
    """The frame that goes before the message with this number, counted from 0 in each direction."""
    return number.to_bytes(NUMBER_BYTES, "big")


def gap(frame: bytes, due: int) -> str:
    """What is wrong with a message that came with this frame where the number `due` was to come; else empty."""
    if len(frame) != NUMBER_BYTES:
        return f"a message came without its number, {due}"
    number = int.from_bytes(frame, "big")
    return "" if number == due else f"message {number} came where {due} was due: what was between them is lost"
