"""Those who have connected and have not said who they are: how many there may be, and how often one may come. Pure."""

import ipaddress
from collections import Counter, OrderedDict
from dataclasses import dataclass

from actors.transport.rate_limit import TokenBucket

MAX_SOURCES = 1024
"""Sources whose rate is remembered; the one that was heard of longest ago is forgotten."""


@dataclass(frozen=True, slots=True)
class StrangerLimits:
    """What strangers may cost by coming."""

    attempts_per_s: float = 2.0
    """Connections from one source, in the long run."""
    attempts_at_once: float = 20.0
    """Connections from one source in a moment."""
    waiting: int = 32
    """Connections, from anywhere, that have not said `Hello` yet."""
    waiting_each: int = 8
    """The same from one source: one alone cannot keep all others out."""


class Strangers:
    """Counts them. Whoever is admitted must be released once, when it has said who it is or is gone."""

    def __init__(self, limits: StrangerLimits) -> None:
        self._limits = limits
        self._attempts: OrderedDict[str, TokenBucket] = OrderedDict()
        self._waiting: Counter[str] = Counter()

    def admit(self, source: str, now: float) -> bool:
        """Whether one more may wait; `now` is in seconds of any steady clock."""
        limits = self._limits
        if not self._bucket(source).take(1.0, now):
            return False
        if self._waiting.total() >= limits.waiting or self._waiting[source] >= limits.waiting_each:
            return False
        self._waiting[source] += 1
        return True

    def release(self, source: str) -> None:
        """One that was admitted waits no more."""
        self._waiting[source] -= 1
        if not self._waiting[source]:
            del self._waiting[source]

    def _bucket(self, source: str) -> TokenBucket:
        bucket = self._attempts.pop(source, None)
        if bucket is None:
            bucket = TokenBucket(self._limits.attempts_per_s, self._limits.attempts_at_once)
        self._attempts[source] = bucket
        if len(self._attempts) > MAX_SOURCES:
            self._attempts.popitem(last=False)
        return bucket


def source_of(host: str) -> str:
    """What counts as one: an address, or a /64 network of IPv6, of which one machine may have all addresses."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
