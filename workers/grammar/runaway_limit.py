"""Bounds the grammars that run into the limits of the check process, by client."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

FREE = 3
"""Grammars of one client that may run into the limits at once."""
EACH_S = 100.0
"""Time after which it may have one more. Streams beside a check notice it for almost a second."""
MAX_CLIENTS = 1024


class RunawayLimit:
    """Holds new grammars of a client back after too many that ran into the limits. Used by one thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paid: OrderedDict[str, float] = OrderedDict()
        """When each client's grammars are forgotten, the latest change last."""

    def wait_s(self, client: str) -> int:
        """Return the seconds after which a new grammar of this client is compiled; 0 is now."""
        left = self._paid.get(client, 0.0) - self._clock()
        return max(0, math.ceil(left - (FREE - 1) * EACH_S))

    def count(self, client: str) -> None:
        """A grammar of this client ran into the limits."""
        now = self._clock()
        self._paid[client] = max(now, self._paid.pop(client, 0.0)) + EACH_S
        if len(self._paid) > MAX_CLIENTS:
            self._paid.popitem(last=False)
