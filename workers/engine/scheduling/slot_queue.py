"""The sequences that wait for a slot: which has the next turn, and which have waited too long. Pure.

Each sequence has a place: its level, then its rank, then its number. The first place has the next turn, and among the
waiting sequences of its level and client the one with the lowest priority of its own takes it. Those that it overtakes
move to the next place each, so that no client comes before others by a number that it sends itself.

All orders are sorted lists that a change updates, so that the turn of a full queue costs a step no more than that of a
short one.
"""

import math
from bisect import bisect_left, insort
from dataclasses import dataclass

from protocol.commands import client_of
from workers.engine.scheduling.preemption import OVERDUE, PATIENCE_S, level_of
from workers.engine.sequence import EngineSequence

Place = tuple[float, int]


def _place(sequence: EngineSequence) -> Place:
    """The place of a sequence within its level."""
    return sequence.rank, sequence.number


def _discard(places: list[EngineSequence], sequence: EngineSequence) -> None:
    del places[bisect_left(places, _place(sequence), key=_place)]


class _ClientQueue:
    """The waiting sequences of one level and client, in the order of their places."""

    def __init__(self) -> None:
        self.places: list[EngineSequence] = []
        self._by_priority: dict[int, list[EngineSequence]] = {}

    def add(self, sequence: EngineSequence) -> None:
        insort(self.places, sequence, key=_place)
        insort(self._by_priority.setdefault(sequence.request.urgency.priority, []), sequence, key=_place)

    def remove(self, sequence: EngineSequence) -> None:
        priority = sequence.request.urgency.priority
        _discard(self.places, sequence)
        _discard(self._by_priority[priority], sequence)
        if not self._by_priority[priority]:
            del self._by_priority[priority]

    def first(self) -> EngineSequence:
        """The one that takes the first place."""
        return self._by_priority[min(self._by_priority)][0]

    def move_first(self, sequence: EngineSequence) -> None:
        """Give the first place to what `first` has returned. Those of one priority keep their order."""
        at = bisect_left(self.places, _place(sequence), key=_place)
        places = [_place(each) for each in self.places[: at + 1]]
        self.places[: at + 1] = [sequence, *self.places[:at]]
        for each, (rank, number) in zip(self.places, places, strict=False):
            each.rank, each.number = rank, number


@dataclass(slots=True, eq=False)
class _QueuedSequence:
    sequence: EngineSequence
    level: int
    overdue_at: float
    expires_at: float


class SlotQueue:
    """Owns the places of the sequences in it. Times do not go back."""

    def __init__(self) -> None:
        self._waiting: dict[int, _QueuedSequence] = {}
        self._clients: dict[tuple[int, str], _ClientQueue] = {}
        self._places: list[tuple[int, Place, str]] = []
        """Level, place and client of each sequence."""
        self._overdue: list[tuple[float, int]] = []
        """Times from which sequences are overdue, and their streams, of those that are not yet."""
        self._expiry: list[tuple[float, int]] = []
        """Times at which sequences have waited for as long as they may, and their streams."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, stream: int) -> bool:
        return stream in self._waiting

    def add(self, sequence: EngineSequence, now: float) -> None:
        """Add a sequence that has waited for some time, or not at all."""
        stream, request = sequence.request.stream, sequence.request
        expires_at = math.inf if sequence.begun else sequence.submitted_at + request.queue_s
        overdue_at = now + PATIENCE_S - sequence.waited_s(now)
        waiting = self._waiting[stream] = _QueuedSequence(sequence, level_of(sequence, now), overdue_at, expires_at)
        if waiting.level != OVERDUE:
            insort(self._overdue, (overdue_at, stream))
        if expires_at < math.inf:
            insort(self._expiry, (expires_at, stream))
        self._enter(waiting)

    def remove(self, stream: int) -> EngineSequence | None:
        """Remove a sequence with its place. Returns None for an unknown one."""
        waiting = self._waiting.pop(stream, None)
        if waiting is None:
            return None
        if waiting.level != OVERDUE:
            del self._overdue[bisect_left(self._overdue, (waiting.overdue_at, stream))]
        if waiting.expires_at < math.inf:
            del self._expiry[bisect_left(self._expiry, (waiting.expires_at, stream))]
        self._leave(waiting)
        return waiting.sequence

    def expired(self, now: float) -> list[EngineSequence]:
        """Return the sequences that have not started within the time for which they may wait."""
        late = self._expiry[: bisect_left(self._expiry, (now, math.inf))]
        return [self._waiting[stream].sequence for _, stream in late]

    def next(self, now: float) -> EngineSequence:
        """Return the sequence that has the next turn. Raises `IndexError` if none waits."""
        while self._overdue and self._overdue[0][0] <= now:
            waiting = self._waiting[self._overdue.pop(0)[1]]
            self._leave(waiting)
            waiting.level = OVERDUE
            self._enter(waiting)
        level, _, client = self._places[0]
        return self._clients[level, client].first()

    def take(self, sequence: EngineSequence) -> None:
        """Remove what `next` has returned, with the first place of its client."""
        waiting = self._waiting[sequence.request.stream]
        mine = self._clients[waiting.level, client_of(sequence.request.tenant)]
        if mine.places[0] is not sequence:
            mine.move_first(sequence)
        self.remove(sequence.request.stream)

    def _enter(self, waiting: _QueuedSequence) -> None:
        level, sequence = waiting.level, waiting.sequence
        client = client_of(sequence.request.tenant)
        self._clients.setdefault((level, client), _ClientQueue()).add(sequence)
        insort(self._places, (level, _place(sequence), client))

    def _leave(self, waiting: _QueuedSequence) -> None:
        level, sequence = waiting.level, waiting.sequence
        client = client_of(sequence.request.tenant)
        mine = self._clients[level, client]
        mine.remove(sequence)
        if not mine.places:
            del self._clients[level, client]
        del self._places[bisect_left(self._places, (level, _place(sequence), client))]
