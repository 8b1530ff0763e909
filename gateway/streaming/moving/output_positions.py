"""Follows the positions in the output of one stream, from its beginning or from where a client has it. Pure."""

from collections.abc import Iterator, Sequence
from zlib import crc32

from msgspec.structs import replace

from gateway.generation.delta import OutputDelta, PromptDelta, TextDelta, ToolCallDelta
from gateway.streaming.moving.event_position import EventPosition, SequencePosition


class OutputDiffers(Exception):
    """Raised when the output is not the one that the client has the beginning of."""


class OutputPositions:
    """The positions of one stream. Deltas go through `parts` and `split` before they are rendered, and `marks` returns
    what the ids of the events have besides their numbers."""

    def __init__(self, count: int, after: EventPosition | None = None) -> None:
        """`count` sequences. `after`: of the client, with as many sequences or, at the beginning, none."""
        self.resumed = after is not None
        known = after.sequences if after is not None and after.sequences else (SequencePosition(),) * count
        self._at = list(known)
        self._written = [each.written() for each in known]
        self._left = [(each.units, each.tokens) for each in known]
        """Units and tokens that the client has and that are still to be computed again."""
        self._checksums = [0] * count
        self._part, self._skipped = (0, 0) if after is None else after.part

    @property
    def catches_up(self) -> bool:
        """Some of what the client has is still to be computed again."""
        return any(units or tokens for units, tokens in self._left)

    @staticmethod
    def parts(deltas: Sequence[OutputDelta]) -> Iterator[OutputDelta]:
        """Separate the end of a sequence from its last output, so that there is a position between them."""
        for delta in deltas:
            if delta.stop is None or isinstance(delta, PromptDelta):
                yield delta
                continue
            if _content(delta) or _count(delta):
                yield replace(delta, stop=None, stopped_by=None)
            yield TextDelta(delta.index, "", stop=delta.stop, stopped_by=delta.stopped_by)

    def split(self, delta: OutputDelta) -> tuple[OutputDelta | None, OutputDelta | None]:
        """Return what the client has of one of the `parts`, and what is new to it. Raises `OutputDiffers`."""
        index = delta.index
        units, tokens = self._left[index]
        if not units and not tokens:
            return None, delta
        if delta.stop is not None:
            self._left[index] = units, tokens = units - 1, tokens
            if units or tokens:
                raise OutputDiffers
            self._check(index)
            return delta, None
        content, count = _content(delta), _count(delta)
        had, had_tokens = min(units, len(content)), min(tokens, count)
        self._left[index] = units - had, tokens - had_tokens
        self._checksums[index] = crc32(content[:had].encode(), self._checksums[index])
        if self._left[index] == (0, 0):
            self._check(index)
        if had == len(content) and had_tokens == count:
            return delta, None
        return _divided(delta, had, had_tokens)

    def _check(self, index: int) -> None:
        if self._checksums[index] != self._at[index].checksum:
            raise OutputDiffers

    def check_all(self) -> None:
        """Raise `OutputDiffers` if the output has ended before the client's position."""
        if self.catches_up:
            raise OutputDiffers

    def pending(self, index: int) -> int:
        """The events of the next output of a sequence that the client has already."""
        return self._skipped if index == self._part else 0

    def skip(self, index: int, events: int) -> int:
        """Note that so many events were rendered, and return how many of them the client has already."""
        skipped = min(self.pending(index), events)
        self._skipped -= skipped
        return skipped

    def marks(self, delta: OutputDelta, events: int) -> list[str]:
        """Advance over new output, of which there are so many events, and return the mark of each: all but the last
        one stand before the output and announce it."""
        index = delta.index
        before = "".join(self._written)
        units, tokens, checksum = self._at[index]
        content = _content(delta)
        ended = 0 if delta.stop is None else 1
        at = SequencePosition(units + len(content) + ended, tokens + _count(delta), crc32(content.encode(), checksum))
        self._at[index], self._written[index] = at, at.written()
        if not events:
            return []
        return [f"{before}_{index}.{number}" for number in range(1, events)] + ["".join(self._written)]

    def last_marks(self, events: int) -> list[str]:
        """The marks of the last events of the stream."""
        at, index = "".join(self._written), len(self._at)
        return [f"{at}_{index}.{number}" for number in range(1, events)] + [f"{at}_e"]


def _content(delta: OutputDelta) -> str:
    return delta.name + delta.arguments if isinstance(delta, ToolCallDelta) else delta.text


def _count(delta: OutputDelta) -> int:
    return max(len(delta.tokens), len(delta.logprobs))


def _divided(delta: OutputDelta, units: int, tokens: int) -> tuple[OutputDelta | None, OutputDelta | None]:
    """Divide a delta after so many characters and tokens of it. Raises `OutputDiffers`."""
    if not units and not tokens:
        return None, delta
    assert not isinstance(delta, PromptDelta)
    if isinstance(delta, ToolCallDelta):
        name = len(delta.name)
        if 0 < units < name:
            raise OutputDiffers
        if not units:
            # Its tokens so far came with other output, which had its own events.
            known: OutputDelta = TextDelta(delta.index, "", delta.tokens[:tokens], delta.logprobs[:tokens])
            return known, replace(delta, tokens=delta.tokens[tokens:], logprobs=delta.logprobs[tokens:])
        first = replace(
            delta,
            arguments=delta.arguments[: units - name],
            tokens=delta.tokens[:tokens],
            logprobs=delta.logprobs[:tokens],
        )
        rest = replace(
            delta,
            id="",
            name="",
            arguments=delta.arguments[units - name :],
            tokens=delta.tokens[tokens:],
            logprobs=delta.logprobs[tokens:],
        )
        return first, rest
    return (
        replace(delta, text=delta.text[:units], tokens=delta.tokens[:tokens], logprobs=delta.logprobs[:tokens]),
        replace(delta, text=delta.text[units:], tokens=delta.tokens[tokens:], logprobs=delta.logprobs[tokens:]),
    )
