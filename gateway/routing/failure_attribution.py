"""Failure attribution: which sequence caused the failure of a worker. Pure.

A request that kills its worker would kill the next one too, so no request may be retried without end; but the requests
that merely shared the worker should live. The rules:

1. Only a sequence that ran can be the cause. Those are the first `slots` of its sequences, the most urgent class first,
   and as many again: one step may end or preempt all that run and start others, and the frames that report it are lost
   with the worker; and the first `slots` by their own priority, which may have preempted those of their client. A new
   request is sent only to a worker that then has no more than these, or where it preempts others, so that the worker
   may start them in any order. A worker may admit requests before some whose grammar it compiles: `MAX_OVERTAKEN` at a
   time, so there may be as many more. Tokenizing is work, too: a sequence whose prompt the worker had not reported as
   made (`Gauges.reached`) may also be the cause. The sequences that waited between the two are not.
2. All sequences that ran at a death from within become suspects, unless one of them was a suspect already. Then the
   death is attributed to that one, which is not retried, and the others stay clear, except those without a prompt: one
   of them may have caused both deaths, and would be retried as a new request again and again.
3. A death from outside (`actors.process.exit_cause`) makes no suspect. But a request may be the reason for one, too,
   for instance through a watchdog or a memory limiter in user space. So all deaths in a row are counted, and no
   request is retried after `MAX_TRIES` of them, whatever their origin. A sequence with one try left is a suspect.
4. A suspect runs apart: a worker gets one only where a slot is free and no other suspect is, so that the next death is
   not ambiguous. Sequences that were only there when a worker was killed from outside run with all others.
5. A sequence is cleared when `CLEARED_AFTER` further tokens have come: it is past the point at which the worker died.

A failed step counts as a death from within: the sequences in it become suspects, and one that was a suspect already is
the cause. So does a request with non-finite logits, if the worker reports that those of others are finite; then the
failure is that request's alone, and does not count against the worker however often it occurs.

A failure that is attributed to a request does not count against the worker: neither its supervisor nor its circuit
breaker counts it (`Exemptions`).
"""

from collections.abc import Hashable, Mapping, Sequence

from gateway.routing.failure import WorkerFailure
from gateway.routing.sequence import LiveSequence
from protocol.bounds import MAX_OVERTAKEN

MAX_TRIES = 4
"""Deaths in a row, whatever their origin. Twice what a request gets that kills from within: more than an operator's few
kills one after the other."""

CLEARED_AFTER = 3
"""Tokens. The last ones before a death may have been computed and not delivered, and are then computed again."""

MAX_EXEMPT = 16
"""Failures of a worker. Eight requests in a row that each killed a worker twice, or failed two steps, with no success
between them: then the worker is as likely the cause, and its readiness must show it."""


class Exemptions:
    """The failures of one worker that do not count against it."""

    def __init__(self) -> None:
        self._exempt: set[Hashable] = set()

    def add(self, failure: Hashable) -> bool:
        """Exempt a failure, under an identity of any kind, that was attributed to a request. False when it was exempt
        already, or when `MAX_EXEMPT` in a row are: then it counts."""
        if failure in self._exempt or len(self._exempt) >= MAX_EXEMPT:
            return False
        self._exempt.add(failure)
        return True

    def __contains__(self, failure: Hashable) -> bool:
        return failure in self._exempt

    def clear(self) -> None:
        """Forget them: a request ended well on the worker, or got past the point at which a worker had died."""
        self._exempt.clear()


def attribute_death(live: Sequence[LiveSequence], slots: int, reached: int, death: WorkerFailure) -> list[LiveSequence]:
    """The sequences that the death of a worker is attributed to, of those that it had, in the order in which it got
    them. The death is recorded with them, and with the others that it may still be attributed to. `reached`: see
    `Gauges.reached`."""
    live = sorted(live, key=lambda sequence: sequence.terms.urgency.level)
    new = [sequence for sequence in live if sequence.submit.stream > reached]
    first = 2 * slots + min(MAX_OVERTAKEN, sum(sequence.submit.grammar is not None for sequence in live))
    urgent = set(sorted(live, key=lambda sequence: sequence.terms.urgency)[:slots])  # may have preempted earlier ones
    later = (sequence for sequence in live[first:] if sequence in urgent or sequence.submit.stream > reached)
    ran = [*live[:first], *later]
    attributed = [sequence for sequence in ran if _is_cause(sequence, death)]
    for sequence in dict.fromkeys([*attributed, *new] if attributed else ran):
        record(sequence, death)
    return attributed


def attribute_step(sequence: LiveSequence, step: WorkerFailure) -> bool:
    """Record a failed step with a sequence that was part of it. True when it is attributed to that sequence."""
    attributed = _is_cause(sequence, step)
    record(sequence, step)
    return attributed


def record(sequence: LiveSequence, failure: WorkerFailure) -> None:
    """The sequence ran during this failure."""
    sequence.failures = (*sequence.failures, failure)
    sequence.since_replay = 0


def suspect(sequence: LiveSequence) -> bool:
    """The next death may be attributed to it."""
    failures = sequence.failures
    # All sequences of a worker are looked at for each one that is placed, and few have had a failure.
    return bool(failures) and (len(failures) >= MAX_TRIES - 1 or any(failure.within for failure in failures))


def attributed_failures(sequence: LiveSequence) -> list[WorkerFailure]:
    """The failures that are attributed to a sequence which ends without having been cleared: those from within; all of
    them, if it had every try. Not those that do not count against a worker anyway."""
    last = len(sequence.failures) >= MAX_TRIES
    return [failure for failure in sequence.failures if failure.of_worker and (failure.within or last)]


def cleared(sequence: LiveSequence, tokens: int) -> bool:
    """A sequence with recorded failures got further tokens. True when that clears it."""
    sequence.since_replay += tokens
    if sequence.since_replay < CLEARED_AFTER:
        return False
    sequence.failures = ()
    return True


def may_run(sequence: LiveSequence, live: Mapping[int, LiveSequence], slots: int) -> bool:
    """A worker with these sequences, by number, may also get this one."""
    return not suspect(sequence) or (len(live) < slots and not any(map(suspect, live.values())))


def _is_cause(sequence: LiveSequence, failure: WorkerFailure) -> bool:
    recorded = sequence.failures
    return len(recorded) + 1 >= MAX_TRIES or (failure.within and any(earlier.within for earlier in recorded))
