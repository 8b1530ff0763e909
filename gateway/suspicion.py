"""Which sequence a worker's death is put down to. Pure.

A request that kills its worker would kill the next one too, so nothing may be tried without end; but those that merely
shared the worker should live. The rule:

1. Only what ran can have done it. A worker's queue is first-in first-out, so that is the first `slots` of its
   sequences, and as many again: one step may end all that run and begin others, and the news die with it. Making a
   prompt is work, too: whose prompt the worker had not said to be made (`Gauges.reached`) may have done it just so.
   Whoever waited between the two is innocent.
2. All that ran at a death become suspects, unless one of them was a suspect already: then it was that one, the others
   stay innocent, and it is tried no third time. Only those without a prompt become suspects all the same: one of them
   may have been the culprit of both deaths, and would come as a newcomer again and again.
3. A suspect runs apart: a worker gets one only where a slot is free and no other suspect is, so that rule 2 never has
   two to choose from. It is cleared when `CLEARED_AFTER` further tokens have come: the point at which the first
   worker died is behind it.

A failed step counts as a death: those that it touched become suspects, and one that was a suspect already fails.

A death that was put down to a request says nothing against the worker: its supervisor does not count it (`Standing`).
"""

from collections.abc import Mapping, Sequence

from gateway.streams import Stream

CLEARED_AFTER = 3
"""Tokens. The last ones before a death may have been computed and not delivered, and are then computed again."""

MAX_PARDONS = 16
"""Deaths. Eight requests in a row that each killed a worker twice, and nothing that it did well between them: then the
worker is as likely to be the culprit, and whoever reads its readiness must learn of it."""


class Standing:
    """Which deaths of one worker are not to count against it: those of its incarnations, by number."""

    def __init__(self) -> None:
        self._pardoned: set[int] = set()

    def pardons(self, incarnation: int) -> bool:
        """That death was put down to a request. True when it is not to count: once for each death, and no more than
        `MAX_PARDONS` times in a row."""
        if incarnation in self._pardoned or len(self._pardoned) >= MAX_PARDONS:
            return False
        self._pardoned.add(incarnation)
        return True

    def served(self) -> None:
        """A request ended well on it, or got past the point at which a worker had died."""
        self._pardoned.clear()


def blame(live: Sequence[Stream], slots: int, reached: int) -> list[Stream]:
    """The sequences that are not to be tried again after the death of a worker that had these, in the order in which
    it got them. Of the other ones those become suspects that may have done it. `reached`: see `Gauges.reached`."""
    new = [stream for stream in live if stream.submit.stream > reached]
    ran = [*live[: 2 * slots], *(stream for stream in live[2 * slots :] if stream.submit.stream > reached)]
    guilty = [stream for stream in ran if stream.suspect]
    for stream in new if guilty else ran:
        if stream not in guilty:
            suspect(stream)
    return guilty


def suspect(stream: Stream) -> None:
    """It was there when a worker died or a step failed."""
    stream.suspect = True
    stream.since_replay = 0


def cleared(stream: Stream, tokens: int) -> bool:
    """A suspect got further tokens; true when it is none any more."""
    stream.since_replay += tokens
    stream.suspect = stream.since_replay < CLEARED_AFTER
    return not stream.suspect


def may_run(stream: Stream, live: Mapping[int, Stream], slots: int) -> bool:
    """A worker with these sequences, by number, may get this one, too."""
    return not stream.suspect or (len(live) < slots and not any(other.suspect for other in live.values()))
