"""The rows that a head for multi-token prediction has yet to compute. Pure.

The row of the head at a cache row has the hidden state of the model there and the token of the next row, so that it is
complete when the next row is computed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar


class HiddenStates(Protocol):
    """Hidden states, an array with a row for each."""

    def __getitem__(self, rows: slice, /) -> Self:
        """Return some rows."""


H = TypeVar("H", bound=HiddenStates)


@dataclass(frozen=True, slots=True)
class HeadRun(Generic[H]):
    """Consecutive rows of the head in one slot."""

    slot: int
    start: int
    """The cache row of the first one."""
    position: int
    tokens: tuple[int, ...]
    """The tokens after the rows."""
    hidden: H

    def before(self, row: int) -> "HeadRun[H] | None":
        """Return the rows before a cache row; None if there are none."""
        count = min(row - self.start, len(self.tokens))
        if count == len(self.tokens):
            return self
        if count <= 0:
            return None
        return HeadRun(self.slot, self.start, self.position, self.tokens[:count], self.hidden[:count])


@dataclass(frozen=True, slots=True)
class _Computed(Generic[H]):
    """Hidden states of consecutive rows of a slot."""

    start: int
    position: int
    count: int
    hidden: H

    def at(self, slot: int, row: int, token: int) -> HeadRun[H] | None:
        """Return the row of the head at a cache row, with the token after it; None without its hidden state."""
        offset = row - self.start
        if not 0 <= offset < self.count:
            return None
        return HeadRun(slot, row, self.position + offset, (token,), self.hidden[offset : offset + 1])


class HeadRows(Generic[H]):
    """Follows the calls of a runner: owns the hidden states of the last call of each slot, and the rows that wait.

    A row whose hidden state is unknown, after rows that were copied, keeps what it was copied with.
    """

    def __init__(self, slots: int) -> None:
        self._last: list[_Computed[H] | None] = [None] * slots
        self._drafted: list[_Computed[H] | None] = [None] * slots
        """The hidden state that the head has computed itself, for the row of a drafted token."""
        self._done: list[tuple[int, int] | None] = [None] * slots
        """The row that the last draft has computed, and its token."""
        self._waiting: list[list[HeadRun[H]]] = [[] for _ in range(slots)]
        self.waiting = 0
        """Rows that wait, of all slots."""
        self._followed = [True] * slots
        self._more: int | None = None
        """Further slots that are followed when a prompt is computed in them; None for all."""

    def follow(self, slots: int | None) -> None:
        """See `DraftHead.follow`."""
        self._more = slots
        for slot in range(len(self._followed)):
            self.forget(slot)
            self._followed[slot] = slots is None

    def follows(self, slot: int, *, prompt: bool) -> bool:
        """Return whether the rows that a call computes in a slot, of a prompt or not, are to be noted."""
        if not self._followed[slot] and prompt and self._more:
            self._more, self._followed[slot] = self._more - 1, True
        return self._followed[slot]

    @property
    def idle(self) -> bool:
        """No slot is followed, nor will be."""
        return self._more == 0 and not any(self._followed)

    def computed(self, slot: int, start: int, position: int, tokens: Sequence[int], hidden: H) -> None:
        """Note that the model has computed rows `start ..` of a slot, whose hidden states are these."""
        self._drop(slot, start - 1)
        last, self._last[slot] = self._last[slot], _Computed(start, position, len(tokens), hidden)
        before = None if last is None else last.at(slot, start - 1, tokens[0])
        if before is not None and self._done[slot] != (start - 1, tokens[0]):
            self._add(before)
        if len(tokens) > 1:
            self._add(HeadRun(slot, start, position, tuple(tokens[1:]), hidden[: len(tokens) - 1]))

    def next(self, slot: int, row: int, token: int) -> HeadRun[H] | None:
        """Return the row of the head from which the token after `row` is drafted, which has `token`; None if its hidden
        state is unknown."""
        for known in (self._last[slot], self._drafted[slot]):
            if known is not None and (found := known.at(slot, row - 1, token)) is not None:
                return found
        return None

    def drafted(self, run: HeadRun[H], hidden: H) -> None:
        """Note that the head has computed a row that `next` has returned, and its own hidden state of one row."""
        last = self._last[run.slot]
        if last is not None and last.at(run.slot, run.start, 0) is not None:
            self._done[run.slot] = (run.start, run.tokens[0])
        self._drafted[run.slot] = _Computed(run.start + 1, run.position + 1, 1, hidden)

    def take(self) -> Iterator[HeadRun[H]]:
        """Take the rows that wait, those of each slot in order."""
        for waiting in self._waiting:
            yield from waiting
            waiting.clear()
        self.waiting = 0

    def copy(self, source: int, target: int, length: int) -> None:
        """Note that the first rows of `source` are those of `target`, or that a slot is truncated to them."""
        last, kept = self._last[source], (run.before(length - 1) for run in self._waiting[source])
        runs = [HeadRun(target, run.start, run.position, run.tokens, run.hidden) for run in kept if run is not None]
        done = self._done[target]
        if target != source:
            self._followed[target] = self._followed[source]
        if target != source or (done is not None and done[0] >= length - 1):
            self._done[target] = None
        self._drop(target, 0)
        for run in runs:
            self._add(run)
        self._drafted[target] = None
        known = None if last is None else last.at(source, length - 1, 0)
        self._last[target] = None if known is None else _Computed(length - 1, known.position, 1, known.hidden)

    def forget(self, slot: int) -> None:
        """Note that a slot is empty, or has rows of which nothing is known."""
        self._drop(slot, 0)
        self._last[slot] = self._drafted[slot] = self._done[slot] = None

    def _add(self, run: HeadRun[H]) -> None:
        self._waiting[run.slot].append(run)
        self.waiting += len(run.tokens)

    def _drop(self, slot: int, row: int) -> None:
        """Drop the waiting rows of a slot from `row` on: another token follows."""
        waiting = self._waiting[slot]
        if not waiting:
            return
        self.waiting -= sum(len(run.tokens) for run in waiting)
        kept = [part for run in waiting if (part := run.before(row)) is not None]
        self.waiting += sum(len(run.tokens) for run in kept)
        waiting[:] = kept
