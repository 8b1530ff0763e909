"""The ideal wait: that of one queue before all slots of all workers, where nobody waits while a slot is free."""

import heapq
from collections.abc import Iterable


def ideal_waits(arrivals: Iterable[tuple[float, float]], slots: int) -> list[float]:
    """Return the wait of each request, first come, first served. `arrivals` has the time at which each comes, in
    order, and the seconds for which it needs a slot. Raises `ValueError` without slots."""
    if slots < 1:
        raise ValueError(f"slots: {slots} is below 1")
    free_at = [0.0] * slots
    waits = []
    for at, service_s in arrivals:
        begins = max(at, free_at[0])
        heapq.heapreplace(free_at, begins + service_s)
        waits.append(begins - at)
    return waits
