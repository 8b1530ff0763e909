"""Positions in the output of a stream, which the ids of its events have.

Events depend on timing: a slow connection gets several tokens as one. A position does not. A gateway that computes the
same output again can continue after any event, whatever the events there would have been.
"""

import re
from typing import NamedTuple

_ID = re.compile(r"([0-9]{1,15})((?:\.[0-9]{1,9}\.[0-9]{1,9}\.[0-9a-f]{8})*)(?:_(?:([0-9]{1,4})\.([0-9]{1,4})|(e)))?")


class SequencePosition(NamedTuple):
    """A position in the output of one sequence."""

    units: int = 0
    """Characters, and one more for the end of the sequence."""
    tokens: int = 0
    """Token ids or log-probabilities, if the stream has any."""
    checksum: int = 0
    """The CRC-32 of these characters."""

    def written(self) -> str:
        return f".{self.units}.{self.tokens}.{self.checksum:08x}"


class EventPosition(NamedTuple):
    """An event, and the output that a client has which got it and all before it."""

    number: int
    """The number of the event."""
    sequences: tuple[SequencePosition, ...] = ()
    """The position in each sequence; none for a stream that only its own gateway can continue."""
    part: tuple[int, int] = (0, 0)
    """A sequence, and the number of events that the client has of its next output. The number of sequences stands for
    the last events of the stream, which are about all of them."""
    last: bool = False
    """Nothing follows."""

    def written(self) -> str:
        """The part of an event's id that is after the stream's id."""
        part = f"_{self.part[0]}.{self.part[1]}" if self.part[1] else ""
        sequences = "".join(each.written() for each in self.sequences)
        return f"{self.number}{sequences}{'_e' if self.last else part}"


def parse_position(text: str) -> EventPosition | None:
    """Parse the part of an event's id that is after the stream's id. None if it is no position."""
    found = _ID.fullmatch(text)
    if found is None:
        return None
    fields = found[2].split(".")[1:]
    sequences = tuple(
        SequencePosition(int(fields[at]), int(fields[at + 1]), int(fields[at + 2], 16))
        for at in range(0, len(fields), 3)
    )
    part = (int(found[3]), int(found[4])) if found[3] else (0, 0)
    return EventPosition(int(found[1]), sequences, part, found[5] is not None)
