"""The addresses of gateways that workers join."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from cli.config.errors import CommandFailed
from cli.config.settings import flag
from protocol.bounds import MAX_GATEWAYS


def check_join_addresses(addresses: Sequence[str]) -> None:
    """Raises `CommandFailed` unless these are addresses of different gateways, not more than a worker may join."""
    for address in addresses:
        if not _is_address(address):
            raise CommandFailed(f"{flag('join')}: write tcp://HOST:PORT, not {address!r}")
    if len(set(addresses)) < len(addresses):
        raise CommandFailed(f"{flag('join')}: a gateway is given twice; a worker joins each of them once")
    if len(addresses) > MAX_GATEWAYS:
        raise CommandFailed(f"{flag('join')}: {len(addresses)} gateways are given; {MAX_GATEWAYS} is the most")


def _is_address(address: str) -> bool:
    """True for `tcp://`, a host and a port, and nothing else."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return False
    where = parts.netloc
    plain = address == f"tcp://{where}" and "@" not in where and not any(each.isspace() for each in where)
    return bool(plain and parts.hostname and port)
