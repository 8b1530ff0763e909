"""Decides how many tokens to draft for each sequence where drafting itself takes time. Pure."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workers.engine.speculation.draft_lengths import MARGIN
from workers.engine.speculation.step_costs import StepCosts


class Offer(NamedTuple):
    """Tokens that may be drafted for a sequence."""

    length: int
    first: float = 0.0
    """The rate at which its first token is accepted."""
    rate: float = 0.0
    """The rate at which each further token is accepted, after those before it."""
    batched: bool = False
    """Its tokens are drafted after the decision, in steps that all such sequences share."""


@dataclass(frozen=True, slots=True)
class ChosenLengths:
    """The tokens of each sequence in a step."""

    lengths: list[int]
    speed: float = 1.0
    """Tokens a second that are expected with them, relative to those without."""


def joint_lengths(
    costs: StepCosts, draft_step: Callable[[int], float], offers: Sequence[Offer], most: int
) -> ChosenLengths:
    """Return how many tokens of each offer to verify, so that the step has the most tokens a second.

    Like `draft_lengths`, with the time to draft: `draft_step` gives that of a token for each of so many sequences. A
    step has `most` rows. Nothing is drafted until the cost of a step without is measured.
    """
    tried = [offers]
    if len({offer.batched for offer in offers if offer.length}) == 2:
        tried.append([Offer(0) if offer.batched else offer for offer in offers])
    chosen = [_lengths(costs, draft_step, some, most, short=short) for some in tried for short in (True, False)]
    return max(chosen, key=lambda each: each.speed)


def _lengths(
    costs: StepCosts, draft_step: Callable[[int], float], offers: Sequence[Offer], most: int, *, short: bool
) -> ChosenLengths:
    """Add tokens in the order of their probability, and return the lengths with the most tokens a second. `short`: a
    token of each sequence comes before a second one of any, as these take a further draft step."""
    rows, lengths = len(offers), [0] * len(offers)
    alone = costs.measured(rows)
    if not alone:
        return ChosenLengths(lengths)
    plain = rows / alone
    best, chosen, tokens = MARGIN * plain, ChosenLengths(list(lengths)), float(rows)
    waiting = [(0, -offer.first, at) for at, offer in enumerate(offers) if offer.length]
    heapq.heapify(waiting)
    batched = steps = 0
    while waiting and rows < most:
        turn, likely, at = waiting[0]
        offer = offers[at]
        lengths[at] += 1
        rows, tokens = rows + 1, tokens - likely
        if offer.batched:
            batched, steps = batched + (lengths[at] == 1), max(steps, lengths[at])
        if lengths[at] < offer.length:
            heapq.heapreplace(waiting, (turn + (short and offer.batched), likely * offer.rate, at))
        else:
            heapq.heappop(waiting)
        drafting = steps * draft_step(batched) if batched else 0.0
        if (speed := tokens / (costs.of(rows) + drafting)) > best:
            best, chosen = speed, ChosenLengths(list(lengths), speed / plain)
    return chosen
