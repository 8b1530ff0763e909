"""Which sequence a worker's death is put down to. Pure.

A request that kills its worker would kill the next one too, so nothing may be tried without end; but those that merely
shared the worker should live. The rule:

1. Only what ran can have done it. A worker's queue is first-in first-out, so that is the first `slots` of its
   sequences, and as many again: one step may end all that run and begin others, and the news die with it. Making a
   prompt is work, too: whose prompt the worker had not said to be made (`Gauges.reached`) may have done it just so.
   Whoever waited between the two is innocent.
2. All that ran at a death from within become suspects, unless one of them was a suspect already: then it was that
   one, the others stay innocent, and it is tried no third time. Only those without a prompt become suspects all the
   same: one of them may have been the culprit of both deaths, and would come as a newcomer again and again.
3. A death from outside (`actors.process.exit_cause`) makes nobody a suspect. But something may kill because of a
   request: a watchdog, or a memory limiter in user space. So all deaths in a row are counted, and no request is tried
   again after `MAX_TRIES` of them, wherever they came from. Whoever has one try left is a suspect, too.
4. A suspect runs apart: a worker gets one only where a slot is free and no other suspect is, so that there are never
   two to choose from. What was merely there when somebody killed a worker from outside runs with all the others.
5. All is forgotten when `CLEARED_AFTER` further tokens have come: the point at which the worker died is behind it.

A failed step counts as a death from within: those that it touched become suspects, and one that was a suspect already
fails. So does a request whose logits are not numbers, where the worker says that those of others are; it alone is
touched, and the worker has nothing to answer for, however many such requests come.

What was put down to a request says nothing against the worker: neither its supervisor nor its circuit counts it
(`Standing`).
"""

from collections.abc import Hashable, Mapping, Sequence

from gateway.routing.failure import Charge
from gateway.routing.sequence import Stream

MAX_TRIES = 4
"""Deaths in a row, wherever they came from. Twice what a request gets that kills from within: it must be more than an
operator's few kills one after the other."""

CLEARED_AFTER = 3
"""Tokens. The last ones before a death may have been computed and not delivered, and are then computed again."""

MAX_PARDONS = 16
"""Failures. Eight requests in a row that each killed a worker twice, or failed two steps, and nothing that it did well
between them: then the worker is as likely to be the culprit, and whoever reads its readiness must learn of it."""


class Standing:
    """Which failures of one worker are not to count against it."""

    def __init__(self) -> None:
        self._pardoned: set[Hashable] = set()

    def pardons(self, failure: Hashable) -> bool:
        """A failure, by a name of any kind, was put down to a request. True when it is not to count: once for each
        failure, and no more than `MAX_PARDONS` times in a row."""
        if failure in self._pardoned or len(self._pardoned) >= MAX_PARDONS:
            return False
        self._pardoned.add(failure)
        return True

    def pardoned(self, failure: Hashable) -> bool:
        """It is not to count."""
        return failure in self._pardoned

    def served(self) -> None:
        """A request ended well on it, or got past the point at which a worker had died."""
        self._pardoned.clear()


def blame(live: Sequence[Stream], slots: int, reached: int, death: Charge) -> list[Stream]:
    """The sequences that are not to be tried again after the death of a worker that had these, in the order in which
    it got them. They are charged with it, and of the others those that it is not known to be put down to.
    `reached`: see `Gauges.reached`."""
    new = [stream for stream in live if stream.submit.stream > reached]
    ran = [*live[: 2 * slots], *(stream for stream in live[2 * slots :] if stream.submit.stream > reached)]
    guilty = [stream for stream in ran if _convicts(stream, death)]
    for stream in dict.fromkeys([*guilty, *new] if guilty else ran):
        charge(stream, death)
    return guilty


def accuse(stream: Stream, step: Charge) -> bool:
    """It was in a step that failed; whether it is not to be tried again."""
    guilty = _convicts(stream, step)
    charge(stream, step)
    return guilty


def charge(stream: Stream, failure: Charge) -> None:
    """It ran when a worker died, or in a step that failed."""
    stream.charges = (*stream.charges, failure)
    stream.since_replay = 0


def suspect(stream: Stream) -> bool:
    """The next death may be put down to it."""
    return len(stream.charges) >= MAX_TRIES - 1 or any(charge.within for charge in stream.charges)


def put_down(stream: Stream) -> list[Charge]:
    """The failures that nobody but this sequence is to answer for, as it ends without having been cleared: those from
    within; and all, where somebody has killed for as often as it may be tried. Not those that no worker answers for."""
    last = len(stream.charges) >= MAX_TRIES
    return [charge for charge in stream.charges if charge.of_worker and (charge.within or last)]


def cleared(stream: Stream, tokens: int) -> bool:
    """One that was charged got further tokens; true when it is so no more."""
    stream.since_replay += tokens
    if stream.since_replay < CLEARED_AFTER:
        return False
    stream.charges = ()
    return True


def may_run(stream: Stream, live: Mapping[int, Stream], slots: int) -> bool:
    """A worker with these sequences, by number, may get this one, too."""
    return not suspect(stream) or (len(live) < slots and not any(suspect(other) for other in live.values()))


def _convicts(stream: Stream, failure: Charge) -> bool:
    return len(stream.charges) + 1 >= MAX_TRIES or (failure.within and any(charge.within for charge in stream.charges))
