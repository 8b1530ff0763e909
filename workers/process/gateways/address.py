"""A gateway that a worker joins: its address and its keys. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from actors.join.join_keys import JoinKeys


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """The address at which a gateway listens for workers, and the keys of the link to it."""

    address: str
    """`tcp://HOST:PORT`."""
    keys: JoinKeys
    """They change once, if the worker has a join token."""


def tenant_prefixes(gateways: Sequence[GatewayAddress]) -> list[str]:
    """Return what precedes the tenants of each gateway on the worker, so that no KV is shared between gateways with
    different keys. Those with the same key are replicas of one: their tenants are the same, and have no prefix if there
    are no others."""
    if len({each.keys.current.server for each in gateways}) == 1:
        return [""] * len(gateways)
    return [blake2b(each.keys.current.server.encode(), digest_size=4).hexdigest() + "/" for each in gateways]
