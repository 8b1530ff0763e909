"""Rules of preemption: which sequence preempts which, and which one has the next turn. Pure.

A sequence reserves rows for its prompt and some more, and further ones as it generates. When the cache is full, the
least urgent sequence is preempted, and of these the one that came last: the first of all always gets on. A more urgent
request that finds no slot takes that of a less urgent one. Classes count among all sequences, and a priority among
those of one client. A preempted sequence continues later: it is computed again from its prompt and the tokens that it
has generated, or takes its rows if they are still retained then.
"""

from collections.abc import Iterable

from protocol.commands import client_of
from protocol.scheduling import may_preempt
from workers.engine.sequence import EngineSequence

MAX_PREEMPTIONS = 3
"""Preemptions after which a sequence is not preempted by a request."""
MIN_LEFT = 16
"""Tokens to its maximum length below which a sequence is not preempted by a request: its slot is free soon."""
PATIENCE_S = 60.0
"""Time without output, in the queue and in prefill, after which a sequence is overdue: it comes before all others,
whatever their urgency, and is not preempted by a request."""

OVERDUE = -1
"""The level of overdue sequences, before those of all classes."""


def in_turn(sequences: Iterable[EngineSequence], now: float) -> list[EngineSequence]:
    """Return prompts in the order in which they are prefilled: that of `SlotQueue`."""
    return _with_priorities(sorted(sequences, key=lambda sequence: _place(sequence, now)), now)


def by_seniority(sequences: Iterable[EngineSequence], now: float) -> list[EngineSequence]:
    """Return sequences in order; the last one is the first that is preempted when the cache is full."""
    return _with_priorities(sorted(sequences, key=lambda sequence: (level_of(sequence, now), sequence.number)), now)


def victims(waiting: EngineSequence, running: Iterable[EngineSequence], now: float) -> list[EngineSequence]:
    """Return the sequences that one that waits may preempt, the first one first."""
    return by_seniority((each for each in running if _preemptible(each, waiting, now)), now)[::-1]


def _overdue(sequence: EngineSequence, now: float) -> bool:
    return sequence.waited_s(now) >= PATIENCE_S


def level_of(sequence: EngineSequence, now: float) -> int:
    """Return the level of a sequence, the lowest of which comes first."""
    return OVERDUE if _overdue(sequence, now) else sequence.request.urgency.level


def _place(sequence: EngineSequence, now: float) -> tuple[int, float, int]:
    return level_of(sequence, now), sequence.rank, sequence.number


def _group(sequence: EngineSequence, now: float) -> tuple[int, str]:
    """Return what sequences have in common whose own priorities are compared: level and client."""
    return level_of(sequence, now), client_of(sequence.request.tenant)


def _have_priorities(sequences: Iterable[EngineSequence]) -> bool:
    return any(sequence.request.urgency.priority for sequence in sequences)


def _with_priorities(ordered: list[EngineSequence], now: float) -> list[EngineSequence]:
    """Give the places of each client to its sequences in the order of their own priorities. The places of others stay
    as they are: no client comes before others by a number that it sends itself."""
    if not _have_priorities(ordered):
        return ordered
    groups: dict[tuple[int, str], list[EngineSequence]] = {}
    for sequence in ordered:
        groups.setdefault(_group(sequence, now), []).append(sequence)
    priorities = {
        group: iter(sorted(mine, key=lambda sequence: sequence.request.urgency.priority))
        for group, mine in groups.items()
    }
    return [next(priorities[_group(sequence, now)]) for sequence in ordered]


def _preemptible(running: EngineSequence, waiting: EngineSequence, now: float) -> bool:
    asked, held = waiting.request, running.request
    return (
        may_preempt(asked.urgency, held.urgency, same_client=client_of(asked.tenant) == client_of(held.tenant))
        and running.preemptions < MAX_PREEMPTIONS
        and running.max_length - len(running.tokens) >= MIN_LEFT
        and not _overdue(running, now)
    )
