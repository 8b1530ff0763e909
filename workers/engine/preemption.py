"""Rules of preemption: which sequence gives way to which, and which one has the next turn. Pure.

A sequence reserves rows for its prompt and some more, and further ones as it generates. When the cache is full, the
least urgent sequence gives way, and of these the one that came last: the first of all always gets on. A more urgent
request that finds no slot takes that of a less urgent one. What gives way is computed again later, from its prompt and
the tokens that it has generated, or continues with its rows if they are still retained then.
"""

from collections.abc import Iterable

from protocol.scheduling import may_preempt
from workers.engine.sequence import EngineSequence

MAX_PREEMPTIONS = 3
"""Preemptions after which a sequence gives way to no request."""
MIN_LEFT = 16
"""Tokens to its maximum length below which a sequence gives way to no request: its slot is free soon."""
PATIENCE_S = 60.0
"""Time without output, in the queue and in prefill, after which a sequence has the next turn, whatever the urgency of
others, and gives way to no request."""


def turn(sequence: EngineSequence, now: float) -> tuple[bool, tuple[int, int], float, int]:
    """Return the sort key of waiting sequences, the first of which gets the next slot, and of prompts."""
    patient = sequence.waited_s(now) < PATIENCE_S
    return patient, sequence.request.urgency if patient else (0, 0), sequence.rank, sequence.number


def last(sequences: Iterable[EngineSequence]) -> EngineSequence:
    """Return the sequence that gives way when the cache is full."""
    return max(sequences, key=_seniority)


def victims(waiting: EngineSequence, running: Iterable[EngineSequence], now: float) -> list[EngineSequence]:
    """Return the sequences that may give way to one that waits, in the order in which they do."""
    return sorted((each for each in running if _gives_way(each, waiting, now)), key=_seniority, reverse=True)


def by_seniority(sequences: Iterable[EngineSequence]) -> list[EngineSequence]:
    """Return sequences in the reverse of the order in which they give way when the cache is full."""
    return sorted(sequences, key=_seniority)


def _seniority(sequence: EngineSequence) -> tuple[tuple[int, int], int]:
    return sequence.request.urgency, sequence.number


def _gives_way(running: EngineSequence, waiting: EngineSequence, now: float) -> bool:
    asked, held = waiting.request, running.request
    return (
        may_preempt(asked.urgency, held.urgency, same_client=asked.tenant == held.tenant)
        and running.preemptions < MAX_PREEMPTIONS
        and running.max_length - len(running.tokens) >= MIN_LEFT
        and running.waited_s(now) < PATIENCE_S
    )
