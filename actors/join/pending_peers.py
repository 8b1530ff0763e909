"""Bounds on pending peers: connections that are not authenticated yet, and how often one source may connect. Pure."""

import ipaddress
from collections import Counter, OrderedDict
from dataclasses import dataclass

from actors.transport.rate_limit import TokenBucket

MAX_SOURCES = 1024
"""Sources whose rate is remembered; the one that connected longest ago is forgotten."""


@dataclass(frozen=True, slots=True)
class PendingLimits:
    """Limits of pending peers."""

    attempts_per_s: float = 2.0
    """Connections from one source, in the long run."""
    attempts_at_once: float = 20.0
    """Connections from one source in a moment."""
    pending: int = 32
    """Connections, from anywhere, that have not said `Hello` yet."""
    pending_each: int = 8
    """The same from one source: one alone cannot keep all others out."""


class PendingPeers:
    """Counts pending peers. Each that is admitted must be released once, when it is authenticated or gone."""

    def __init__(self, limits: PendingLimits) -> None:
        self._limits = limits
        self._attempts: OrderedDict[str, TokenBucket] = OrderedDict()
        self._pending: Counter[str] = Counter()

    def admit(self, source: str, now: float) -> bool:
        """Admit one more, if the limits allow it. `now` is in seconds of any steady clock."""
        limits = self._limits
        if not self._bucket(source).take(1.0, now):
            return False
        if self._pending.total() >= limits.pending or self._pending[source] >= limits.pending_each:
            return False
        self._pending[source] += 1
        return True

    def release(self, source: str) -> None:
        """Release a peer that was admitted."""
        self._pending[source] -= 1
        if not self._pending[source]:
            del self._pending[source]

    def _bucket(self, source: str) -> TokenBucket:
        bucket = self._attempts.pop(source, None)
        if bucket is None:
            bucket = TokenBucket(self._limits.attempts_per_s, self._limits.attempts_at_once)
        self._attempts[source] = bucket
        if len(self._attempts) > MAX_SOURCES:
            self._attempts.popitem(last=False)
        return bucket


def source_of(host: str) -> str:
    """The source of a connection: its IPv4 address, or the /64 network of its IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
