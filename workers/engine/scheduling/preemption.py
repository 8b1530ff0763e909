"""Rules of preemption: which sequence preempts which, and which one has the next turn. Pure.

A sequence reserves rows for its prompt and some more, and further ones as it generates. When the cache is full, the
least urgent sequence is preempted, and of these the one that came last: the first of all always gets on. A more urgent
request that finds no slot takes that of a less urgent one. A preempted sequence continues later: it is computed again
from its prompt and the tokens that it has generated, or takes its rows if they are still retained then.
"""

from collections.abc import Iterable

from protocol.commands import TENANT_SALT
from protocol.scheduling import may_preempt
from workers.engine.request import EngineRequest
from workers.engine.sequence import EngineSequence

MAX_PREEMPTIONS = 3
"""Preemptions after which a sequence is not preempted by a request."""
MIN_LEFT = 16
"""Tokens to its maximum length below which a sequence is not preempted by a request: its slot is free soon."""
PATIENCE_S = 60.0
"""Time without output, in the queue and in prefill, after which a sequence is overdue: it comes before all others,
whatever their urgency, and is not preempted by a request."""

Standing = tuple[bool, tuple[int, int]]


def turn(sequence: EngineSequence, now: float) -> tuple[Standing, float, int]:
    """Return the sort key of waiting sequences, the first of which gets the next slot, and of prompts."""
    return _standing(sequence, now), sequence.rank, sequence.number


def by_seniority(sequences: Iterable[EngineSequence], now: float) -> list[EngineSequence]:
    """Return sequences in order; the last one is the first that is preempted when the cache is full."""
    return sorted(sequences, key=lambda sequence: (_standing(sequence, now), sequence.number))


def victims(waiting: EngineSequence, running: Iterable[EngineSequence], now: float) -> list[EngineSequence]:
    """Return the sequences that one that waits may preempt, the first one first."""
    return by_seniority((each for each in running if _preemptible(each, waiting, now)), now)[::-1]


def _overdue(sequence: EngineSequence, now: float) -> bool:
    return sequence.waited_s(now) >= PATIENCE_S


def _standing(sequence: EngineSequence, now: float) -> Standing:
    """Return the sort key of the urgency of sequences."""
    return (False, (0, 0)) if _overdue(sequence, now) else (True, sequence.request.urgency)


def _client(request: EngineRequest) -> str:
    return request.tenant.partition(TENANT_SALT)[0]


def _preemptible(running: EngineSequence, waiting: EngineSequence, now: float) -> bool:
    asked, held = waiting.request, running.request
    return (
        may_preempt(asked.urgency, held.urgency, same_client=_client(asked) == _client(held))
        and running.preemptions < MAX_PREEMPTIONS
        and running.max_length - len(running.tokens) >= MIN_LEFT
        and not _overdue(running, now)
    )
