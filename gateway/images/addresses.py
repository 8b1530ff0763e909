"""Tells public addresses from those at which a gateway must not fetch: its own network, and ways to write one of it.

The networks are those of IANA's registries of special-purpose addresses (RFC 6890), and those that stand for an IPv4
address: mapped and compatible (RFC 4291), 6to4 (RFC 3056), Teredo (RFC 4380) and NAT64 (RFC 6052, RFC 8215).
"""

import ipaddress

_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24"),
            *("192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
            *("224.0.0.0/4", "240.0.0.0/4"),
        ),
    )
)
_PUBLIC_V6 = ipaddress.ip_network("2000::/3")
"""All unicast addresses that are given out. Mapped and local ones, NAT64 and multicast are outside of it."""
_NOT_PUBLIC_V6 = tuple(
    map(
        ipaddress.ip_network,
        ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),
    )
)


def is_public(text: str) -> bool:
    """Return whether an address is one of the public internet. False for one with a scope, and for any other text."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC)
    if address.scope_id is not None or address not in _PUBLIC_V6:
        return False
    return not any(address in network for network in _NOT_PUBLIC_V6)
