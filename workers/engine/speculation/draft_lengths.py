"""Decides how many drafted tokens of each sequence a step verifies. Pure."""

import heapq
import math
from collections.abc import Sequence

from workers.engine.speculation.step_costs import StepCosts

MARGIN = 1.05
"""Tokens a second that are expected with drafts, relative to those without, from which on drafts are verified."""
LEAST_STAKE = 2
"""Tokens of a draft that are verified whatever may be lost by them: without any there are no gains."""


def draft_lengths(
    costs: StepCosts, drafts: Sequence[tuple[int, float, float]], most: int, stake: float = math.inf
) -> list[int]:
    """Return how many tokens of each draft to verify, so that the step has the most tokens a second.

    Each draft has its length and the rates at which its first token and each further one are accepted. A sequence has
    one row without a draft, and one more for each drafted token; the step has `most` rows. It takes up to `stake`
    seconds longer than without, for each draft (they are not all wrong at once), or has `LEAST_STAKE` tokens of each.
    No draft is verified until the cost of the step without any is measured.
    """
    rows, lengths = len(drafts), [0] * len(drafts)
    alone = costs.measured(rows)
    if not alone:
        return lengths
    best, chosen, tokens = MARGIN * rows / alone, lengths, float(rows)
    # The probability that a token is accepted falls from each one of a draft to the next.
    waiting = [(-first, at) for at, (length, first, _) in enumerate(drafts) if length]
    heapq.heapify(waiting)
    lengths, stake, least = list(lengths), stake * len(waiting), LEAST_STAKE * len(waiting)
    while waiting and rows < most:
        likely, at = waiting[0]
        lengths[at] += 1
        rows, tokens = rows + 1, tokens - likely
        cost = costs.of(rows)
        if cost - alone > stake and rows - len(drafts) > least:
            break
        length, _, rate = drafts[at]
        if lengths[at] < length:
            heapq.heapreplace(waiting, (likely * rate, at))
        else:
            heapq.heappop(waiting)
        if (speed := tokens / cost) > best:
            best, chosen = speed, list(lengths)
    return chosen
