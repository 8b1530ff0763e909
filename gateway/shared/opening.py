"""Opens what this gateway shares with others through Redis, whose package is optional."""

import secrets
from typing import TYPE_CHECKING, NamedTuple

from gateway.keys.api_keys import ApiKeys
from gateway.routing.placement.wait_queue import WaitQueue

if TYPE_CHECKING:
    from gateway.shared.limit_leases import LimitLeases
    from gateway.shared.stream_records import StreamRecords


class SharingUnavailable(Exception):
    """Raised when limits are to be shared, and the package for it is not installed or the URL is invalid."""


class Sharing(NamedTuple):
    """The state that this gateway shares with others."""

    limits: "LimitLeases"
    streams: "StreamRecords"


def open_sharing(url: str, keys: ApiKeys, queue: WaitQueue) -> Sharing | None:
    """Return what is shared through the Redis of a URL; None without one. Raises `SharingUnavailable`."""
    if not url:
        return None
    try:
        from gateway.shared.limit_leases import LimitLeases
        from gateway.shared.redis_leases import RedisLeases
        from gateway.shared.shared_turns import SharedTurns
        from gateway.shared.stream_records import StreamRecords
    except ImportError as error:
        text = f"redis_url needs the package of Redis ({error}): pip install 'baton-serve[redis]'"
        raise SharingUnavailable(text) from error
    try:
        name = secrets.token_hex(12)
        turns = SharedTurns(queue.take_served, queue.charge_elsewhere)
        return Sharing(LimitLeases(RedisLeases(url, name), keys, turns), StreamRecords(url, name))
    except ValueError as error:
        raise SharingUnavailable(f"redis_url: {error}") from error
