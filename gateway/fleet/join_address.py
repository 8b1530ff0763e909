"""The address where remote workers join: loopback or a private network, unless a public one is asked for."""

import ipaddress
import socket
from urllib.parse import urlsplit

from actors.transport.endpoint import EndpointError, is_loopback
from gateway.http.acceptor import Acceptor

BACKLOG = 64


def join_address(address: str, *, public: bool) -> tuple[str, int]:
    """Host and port of `tcp://HOST:PORT`. Raises `EndpointError` for anything else, and for an address that anybody can
    reach (not of this machine or of a private network, by RFC 1918 and 4193) unless `public`."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.scheme != "tcp" or parts.netloc != address.removeprefix("tcp://"):
        raise EndpointError(f"an address for workers is tcp://HOST:PORT, not {address!r}")
    if not public and not _is_private(host):
        raise EndpointError(
            f"{address} can be reached by anybody. Only workers with a key on the allow-list get in, but say that "
            "you want it (--allow-public-workers), or give an address of a private network"
        )
    return host, port


def listen_at(host: str, port: int) -> Acceptor:
    """A listening socket. Raises `EndpointError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = Acceptor(fileno=socket.create_server((host, port), family=family, backlog=BACKLOG).detach())
    except OSError as error:
        raise EndpointError(f"cannot listen for workers on {host}:{port}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


def _is_private(host: str) -> bool:
    if is_loopback(host):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_private and not address.is_unspecified
